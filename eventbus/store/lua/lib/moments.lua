--needs commands
--exports moments
-- Jobs in sorted sets by time: those of one millisecond keep the order in which they came, whoever added them. A score
-- is the time and a fraction of a millisecond, the place there. Where a millisecond is full, whoever comes stands behind
-- those of the next one: 2,000 jobs of one time make the last one wait a millisecond longer.
-- Releases that do not know of places write whole scores: such jobs stand before the others of their millisecond, and
-- among each other by id. They promote a job that has a place a millisecond later.
moments = {}
local STEP = 1 / 2048 -- a double has room for it beside a time until the year 2109
local LONGEST = 1000 -- full milliseconds that one call passes; behind them places are shared, in the order of ids

-- Behind those that stand in a millisecond, or in the first one after it that is not full.
local function find_place(name, time)
  for at = time, time + LONGEST do
    local bounds = { '(' .. commands.whole(at + 1), commands.whole(at) }
    local last = commands.try('ZRANGE', name, bounds[1], bounds[2], 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
    local place = last and last[2] and tonumber(last[2]) + STEP or at
    if place < at + 1 then return place end
  end
  return time + LONGEST
end

-- list: flat list of time, job. Returns whether they stand there: false where somebody else's value does.
function moments.add(name, list)
  local scored, places = {}, {}
  for i = 1, #list, 2 do
    local time = math.floor(tonumber(list[i]))
    local place = places[time] and places[time] + STEP
    if not place or place == math.floor(place) then place = find_place(name, place or time) end
    places[time] = place
    scored[i], scored[i + 1] = string.format('%.17g', place), list[i + 1]
  end
  return commands.try_many('ZADD', name, scored) and true
end

-- The bound of what has its time by now, for ZRANGEBYSCORE.
function moments.end_of(now)
  return '(' .. commands.whole(now + 1)
end
