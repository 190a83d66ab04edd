--needs shard commands entry lanes
--exports waiting_page
-- Pages of the jobs that wait, in the order of claims; behind them suspects, which are claimed by themselves, and lanes, one
-- after the other. Writes nothing.
-- The score of a job is its part (see PARTS), its place there, and its entry; where a page ends, the next entry stands
-- behind that. Both ends of a list move between two pages, so the next page looks for these two again.
-- What must hold: a job that waits all the time and does not change its place is on one page at least. Only in the depth
-- of a list, where more were claimed between two pages than NEAR, the next page may pass some over.
waiting_page = {}
local NEAR = 1000 -- entries on either side of its place in which one is looked for
local LONGEST = bounds.SEARCHED -- entries from the head in which it is looked for then
local PARTS = { { 'ready+', 'negative' }, { 'ready' }, { 'ready+' }, { 'suspects' }, { 'lanes' } }

local function find_entry(name, entry, place)
  local first = math.max(0, place - NEAR)
  for i, each in ipairs(commands.try('LRANGE', name, first, place + NEAR) or {}) do
    if each == entry then return first + i - 1 end
  end
  return commands.try('LPOS', name, entry, 'MAXLEN', LONGEST) or nil
end

-- Where a page goes on behind `entry`, which was seen at `place`, before `next_entry`. What is gone was claimed, and all
-- before it; so is what moved away from the head, unless others were put there: then the two still stand together.
local function find_place(name, entry, next_entry, place)
  local found = find_entry(name, next_entry or entry, place)
  if not found then return place < LONGEST and 0 or place - NEAR end
  if not next_entry then return found <= place and found + 1 or 0 end
  local is_moved = found > place + 1 and commands.try('LINDEX', name, found - 1) ~= entry
  return is_moved and 0 or found
end

-- The rank behind a member of a sorted set; where that is gone, of the first one behind its score.
local function find_rank(name, id, score)
  local rank = commands.try('ZRANK', name, id)
  if rank then return rank + 1 end
  local following = (commands.try('ZRANGEBYSCORE', name, score, '+inf', 'LIMIT', 0, 1) or {})[1]
  return following and redis.call('ZRANK', name, following) or redis.call('ZCARD', name)
end

-- The entries of a part behind the last one that was seen, each with its place.
local function read_ranked(name, is_negative, entry, place, count)
  local negative = commands.try('ZCOUNT', name, '-inf', '(0')
  if not negative then return {} end
  local first = entry and find_rank(name, entry, place) or is_negative and 0 or negative
  local last = is_negative and math.min(negative, first + count) or first + count
  return first < last and redis.call('ZRANGE', name, first, last - 1, 'WITHSCORES') or {}
end

local function read_listed(name, entry, next_entry, place, count)
  local first, found = entry and find_place(name, entry, next_entry, tonumber(place)) or 0, {}
  for i, each in ipairs(commands.try('LRANGE', name, first, first + count - 1) or {}) do
    found[2 * i - 1], found[2 * i] = each, commands.whole(first + i - 1)
  end
  return found
end

-- The same for all lanes. The place of an entry has its lane before it.
local function read_lanes(queue, entry, next_entry, seen, count)
  local found, last, place = {}, string.match(seen or '', '^([^/]*)/(%d+)$')
  for _, lane in ipairs(lanes.list(queue)) do
    local left = count - #found / 2
    if left > 0 and (not entry or lane >= last) then
      local page = read_listed(lanes.key_of(queue, lane), entry and lane == last and entry, next_entry, place, left)
      for i = 1, #page, 2 do found[#found + 1], found[#found + 2] = page[i], lane .. '/' .. page[i + 1] end
    end
  end
  return found
end

-- A flat list of job, score: at least `count` where there are so many behind the one that was seen.
function waiting_page.read(queue, score, count)
  local page, last, next_entry = {}, string.match(score, '^(.*)%z(.*)$')
  local seen, place, entry = string.match(last or score, '^(%d) (%S+) (.*)$')
  for number = tonumber(seen or 1), #PARTS do
    local part = PARTS[number]
    local name, is_ranked, left = shard.key(part[1], queue), part[1] == 'ready+', count - #page / 2
    if left <= 0 then break end
    local found
    if is_ranked then
      found = read_ranked(name, part[2], entry, place, left)
    elseif part[1] == 'lanes' then
      found = read_lanes(queue, entry, next_entry, place, left)
    else
      found = read_listed(name, entry, next_entry, place, left)
    end
    for i = 1, #found, 2 do
      page[#page + 1] = is_ranked and found[i] or Entry.job(found[i])
      page[#page + 1] = number .. ' ' .. found[i + 1] .. ' ' .. found[i]
    end
    entry = nil
  end
  return page
end

-- Whether the record of a waiting job confirms the entry of this score.
function waiting_page.is_in_line(id, record, score)
  local number, entry = string.match(score, '^(%d) %S+ (.*)$')
  return PARTS[tonumber(number)][1] == 'ready+' or entry == Entry.of(id, record)
end

-- The score at the end of a page, with the entry that follows there.
function waiting_page.end_page(score, following)
  local entry = string.match(following, '^%d %S+ (.*)$')
  local function part_of(each) return string.match(each, '^5 [^/]*') or string.sub(each, 1, 1) end
  return part_of(score) == part_of(following) and score .. '\0' .. entry or score
end
