--needs shard commands changes chore_list flag floors plain
--exports retention
-- Removing finished jobs: bounded work in each call, oldest first. Those that failed or were cancelled stay for WINDOW
-- at least, also where nobody awaits them: who repeats a cancel is to hear what became of it.
retention = {}

local to_forget = bounds.CALL_ROWS -- members of trees that one call removes; the rest is a chore
local forget_members

-- The keys of jobs, but for what ties them to others.
function retention.list_keys(ids)
  local names = {}
  for _, id in ipairs(ids) do
    for _, kind in ipairs(FLAG.KEYS) do
      names[#names + 1] = shard.key(kind, id)
    end
  end
  return names
end

-- The keys that each of some records says there are: of a plain one its own alone. What cannot be read may have all.
local function list_keys(ids, records, from, to)
  local names, trees = {}, {}
  for i = from, to do
    local id = ids[i]
    local first, flags = string.byte(records[i] or '', 1, 2)
    if not first or first < 32 or first > 47 then flags = nil end
    names[#names + 1] = shard.job_root .. id
    if not flags or flags % (2 * FLAG.MORE) >= FLAG.MORE then trees[#trees + 1] = id end
    for _, kind in ipairs(flags == 0 and {} or FLAG.KEYS) do
      if not flags or FLAG.OF[kind] and bit.band(flags, FLAG.OF[kind]) ~= 0 then names[#names + 1] = shard.key(kind, id) end
    end
  end
  return names, trees
end

local function read_records(ids)
  local names = {}
  for i, id in ipairs(ids) do names[i] = shard.job_root .. id end
  return commands.get_all(names)
end

-- Tells who watches (`changes.lua`), but of what somebody removed: `remove.lua` has told it. Of a record that cannot be
-- read nobody knows the queue.
local function note_removed(ids, records)
  for i, id in ipairs(ids) do
    local is_read, queue = pcall(plain.find_queue, records[i] or '')
    if is_read and not commands.try('HGET', shard.key('more', id), 'removed') then changes.note('removed', queue, id) end
  end
end

-- Removes records, and with a root its whole tree. `records`: as they are read, where somebody has read them.
function retention.forget(ids, records)
  records = records or read_records(ids)
  if changes.is_on() then note_removed(ids, records) end
  for first = 1, #ids, bounds.CALL_ROWS do
    local names, trees = list_keys(ids, records, first, math.min(first + bounds.CALL_ROWS - 1, #ids))
    redis.call('UNLINK', unpack(names))
    for _, id in ipairs(trees) do
      if redis.call('EXISTS', shard.key('members', id)) == 1 then forget_members(id) end
    end
  end
end

-- What ties a job to others.
function retention.forget_ties(id)
  redis.call('UNLINK', shard.key('needs', id), shard.key('feeds', id), shard.key('leaves', id))
end

function forget_members(tree)
  local name = shard.key('members', tree)
  local ids = {}
  if to_forget > 0 then ids = commands.try('LRANGE', name, 0, to_forget - 1) or {} end
  if to_forget > 0 and #ids == 0 then redis.call('UNLINK', name) end -- somebody else's
  to_forget = to_forget - #ids
  if #ids > 0 then
    redis.call('LTRIM', name, #ids, -1)
    for _, id in ipairs(ids) do retention.forget_ties(id) end
    retention.forget(ids)
  end
  if redis.call('EXISTS', name) == 1 then
    chore_list.add('forget', tree)
  else
    retention.forget_ties(tree)
    redis.call('UNLINK', shard.key('done', tree))
  end
end

-- Removes at most `limit` jobs past `count` or `age` (ms) from one finished set;
-- returns how many.
function retention.cut(state, queue, count, age, limit, now)
  local name = shard.key(state, queue)
  local first = (commands.try('ZRANGE', name, 0, 0, 'WITHSCORES') or {})[2]
  if not first or tonumber(first) >= now - floors.WINDOW then return 0 end
  local over = math.min(redis.call('ZCARD', name) - count, limit)
  local too_old = '(' .. commands.whole(now - math.max(age, floors.WINDOW))
  local gone = redis.call('ZRANGEBYSCORE', name, '-inf', too_old, 'LIMIT', 0, limit)
  if over > #gone then
    gone = redis.call('ZRANGEBYSCORE', name, '-inf', '(' .. commands.whole(now - floors.WINDOW), 'LIMIT', 0, over)
  end
  if #gone > 0 then
    commands.call_many('ZREM', name, gone)
    retention.forget(gone)
  end
  return #gone
end
