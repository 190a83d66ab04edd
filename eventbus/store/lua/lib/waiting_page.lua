--needs base entry
--exports read_waiting is_in_line
-- Pages of the jobs that wait, in the order of claims; the suspects, which are claimed by themselves, are last. Writes nothing.
-- The score of a job is its part (see PARTS), its place there, and its entry. Both ends of a list move between two
-- pages, so the next page looks for the entry again.
local NEAR = 1000 -- entries on either side of its place in which the last one is looked for
local LONGEST = 100000 -- entries from the head in which it is looked for then
local PARTS = { { 'ready+', 'negative' }, { 'ready' }, { 'ready+' }, { 'suspects' } }

-- The place behind an entry that was seen at `place`. One that was claimed has none before it, so what follows is the head.
-- In the depth of a longer list the page goes on a little before that place, and may bring jobs again.
local function find_place(name, entry, place)
  local first = math.max(0, place - NEAR)
  for i, each in ipairs(try('LRANGE', name, first, place + NEAR) or {}) do
    if each == entry then return first + i end
  end
  local found = try('LPOS', name, entry, 'MAXLEN', LONGEST)
  if found then return found + 1 end
  return place < LONGEST and 0 or first
end

-- The rank behind a member of a sorted set; where that is gone, of the first one behind its score.
local function find_rank(name, id, score)
  local rank = try('ZRANK', name, id)
  if rank then return rank + 1 end
  local following = (try('ZRANGEBYSCORE', name, score, '+inf', 'LIMIT', 0, 1) or {})[1]
  return following and redis.call('ZRANK', name, following) or redis.call('ZCARD', name)
end

-- The entries of a part behind the last one that was seen, each with its place.
local function read_ranked(name, is_negative, entry, place, count)
  local negative = try('ZCOUNT', name, '-inf', '(0')
  if not negative then return {} end
  local first = entry and find_rank(name, entry, place) or is_negative and 0 or negative
  local last = is_negative and math.min(negative, first + count) or first + count
  return first < last and redis.call('ZRANGE', name, first, last - 1, 'WITHSCORES') or {}
end

local function read_listed(name, entry, place, count)
  local first, found = entry and find_place(name, entry, tonumber(place)) or 0, {}
  for i, each in ipairs(try('LRANGE', name, first, first + count - 1) or {}) do
    found[2 * i - 1], found[2 * i] = each, whole(first + i - 1)
  end
  return found
end

-- A flat list of job, score: at least `count` where there are so many behind the one that was seen.
function read_waiting(queue, score, count)
  local page, seen, place, entry = {}, string.match(score, '^(%d) (%S+) (.*)$')
  for number = tonumber(seen or 1), #PARTS do
    local part = PARTS[number]
    local name, is_ranked, left = key(part[1], queue), part[1] == 'ready+', count - #page / 2
    if left <= 0 then break end
    local found
    if is_ranked then
      found = read_ranked(name, part[2], entry, place, left)
    else
      found = read_listed(name, entry, place, left)
    end
    for i = 1, #found, 2 do
      page[#page + 1] = is_ranked and found[i] or id_of(found[i])
      page[#page + 1] = number .. ' ' .. found[i + 1] .. ' ' .. found[i]
    end
    entry = nil
  end
  return page
end

-- Whether the record of a waiting job confirms the entry of this score.
function is_in_line(id, record, score)
  local number, entry = string.match(score, '^(%d) %S+ (.*)$')
  return PARTS[tonumber(number)][1] == 'ready+' or entry == entry_of(id, record)
end
