--exports windows
-- Rates: at most so many starts within any span of a window's length, several windows together.
-- What must hold: no span of its length ever has more starts than its rate. A window is cut into 16 buckets of its time, so
-- any span of its length lies within 17 of them; what may start is what these leave. So 16 of 17 parts of a rate can be used.
-- Where the clock was set back the buckets keep their ages: nothing is forgotten, and nothing stays closed.
--   a window in the server   its newest bucket, u48; the starts of 17 buckets, u32 each, the newest first
-- Rejected: token buckets and GCRA, for 2n - 1 starts may fall into one span; a time for each start, for a rate may be large.
local BUCKETS = 17 -- the parts of a window, and one more
local FORMAT = '>I6' .. string.rep('I4', BUCKETS)
local SIZE = 6 + 4 * BUCKETS

windows = {}

-- The window as it is now: buckets that fell out are gone.
local function read_one(starts, length, text, at, now)
  local window = { starts = starts, length = length, index = math.floor(now * (BUCKETS - 1) / length), counts = {}, sum = 0 }
  local parts = #text >= at + SIZE - 1 and { struct.unpack(FORMAT, text, at) } or { window.index }
  local shift = math.max(0, window.index - parts[1])
  window.is_ahead = parts[1] > window.index
  for i = 1, BUCKETS do
    window.counts[i] = i > shift and parts[1 + i - shift] or 0
    window.sum = window.sum + window.counts[i]
  end
  return window
end

-- rates: a flat list of starts and length, ms; text: the buckets of their windows, from the place `at` on.
-- `is_ahead` of the list: the clock was set back, so that the windows must be written as they are now.
function windows.read(rates, text, at, now)
  local list = {}
  for i = 1, #rates, 2 do
    local window = read_one(rates[i], rates[i + 1], text, at, now)
    list[#list + 1], list.is_ahead, at = window, list.is_ahead or window.is_ahead, at + SIZE
  end
  return list
end

function windows.encode(list)
  local parts = {}
  for i, window in ipairs(list) do parts[i] = struct.pack(FORMAT, window.index, unpack(window.counts, 1, BUCKETS)) end
  return table.concat(parts)
end

-- How many may start now.
function windows.count_free(list)
  local free = math.huge
  for _, window in ipairs(list) do free = math.min(free, window.starts - window.sum) end
  return math.max(0, free)
end

function windows.is_empty(list)
  for _, window in ipairs(list) do
    if window.sum > 0 then return false end
  end
  return true
end

function windows.count_start(list)
  for _, window in ipairs(list) do window.counts[1], window.sum = window.counts[1] + 1, window.sum + 1 end
end

-- When the oldest bucket of a window falls out that has any starts, ms.
local function change_of(window)
  local oldest = BUCKETS
  while window.counts[oldest] == 0 do oldest = oldest - 1 end
  return math.ceil((window.index + BUCKETS + 1 - oldest) * window.length / (BUCKETS - 1))
end

-- When something may start again, ms, or before; nil if it may now.
function windows.find_opening(list)
  local opens
  for _, window in ipairs(list) do
    if window.sum >= window.starts then opens = math.max(opens or 0, change_of(window)) end
  end
  return opens
end

-- Takes the buckets of another list over, of windows that are as long.
function windows.take_over(list, formers)
  for _, window in ipairs(list) do
    for _, former in ipairs(formers) do
      if former.length == window.length then window.counts, window.sum = former.counts, former.sum end
    end
  end
end
