--needs shard args commands accepting agenda cancelling enqueuing epilogue holds rooting
--exports firing
-- What a call that fires schedules writes: the jobs, and then for each schedule where it stands.
firing = {}
local FOREIGN_PAUSE = 5000 -- ms until somebody tries again
local SHORTEST, LONGEST = 20, 1000 -- ms until somebody looks again whether the last job has ended
local FAIL_REASON = 'its last job failed'

local function make_queue(row)
  local queue = { name = row.queue, targets = row.has_default and { { queue = row.queue, suffix = '' } } or {}, max = '', are_roots = row.is_root }
  if row.is_root then return queue end
  local groups = redis.call('SMISMEMBER', shard.root .. ':grouped', row.queue)[1] == 1 and commands.try('SMEMBERS', shard.key('groups', row.queue))
  queue.is_foreign = groups == nil
  for _, group in ipairs(groups or {}) do
    queue.targets[#queue.targets + 1] = { queue = row.queue .. '@' .. group, suffix = '@' .. group }
  end
  return queue
end

-- Adds the jobs of rows that fire, as `add` does. A key that has a job, whatever became of it, keeps it.
local function add_jobs(rows, words, now)
  local queues, places, answer, timeout_count = {}, {}, {}, 0
  args.values, args.at = {}, 0
  for i, row in ipairs(rows) do
    if words[i] == 'fired' then
      queues[#queues + 1], places[#places + 1] = make_queue(row), i
      for _, value in ipairs({ row.job, #queues, row.body, row.key, row.print, '', '', 0, 0, 0, 1, '', row.limit, '' }) do args.values[#args.values + 1] = value end
    end
  end
  local jobs = args.values
  args.values = {}
  for number, place in ipairs(places) do
    if rows[place].timeout > 0 then
      args.values[#args.values + 1], args.values[#args.values + 2], timeout_count = number - 1, rows[place].timeout, timeout_count + 1
    end
  end
  rooting.read_timeouts(timeout_count)
  args.values, args.at = jobs, 0
  local taken = accepting.take_all(queues, 0, #queues, '', now, answer)
  enqueuing.add(taken.jobs, '', now, answer)
  rooting.flush(now)
  for i = 1, #answer, 5 do
    local place, word = places[answer[i] + 1], answer[i + 1]
    words[place] = (word == 'joined' or word == 'other') and 'joined' or word
    if words[place] == 'pending' then words[place], rows[place].wait = 'waits', FOREIGN_PAUSE end -- a tree half added has its key
    if words[place] == 'joined' then rows[place].job = answer[i + 2] end
  end
end

local function cancel_last(rows, words, key_ttl, now)
  local ids = {}
  for i, row in ipairs(rows) do
    if row.cancels and words[i] == 'fired' then ids[#ids + 1] = row.cancels end
  end
  if #ids == 0 then return end
  holds.load(ids)
  for i, row in ipairs(rows) do
    if row.cancels and words[i] == 'fired' then
      local reason = 'its schedule ' .. row.id .. ' fired again: ' .. row.job
      cancelling.cancel(row.cancels, row.job, cjson.encode({ type = 'JobCancelled', message = reason }), now, key_ttl)
    end
  end
  epilogue.end_call({}, now)
end

local function settle_row(row, word, now)
  local name, is_job = shard.key('schedule', row.id), word == 'fired' or word == 'joined'
  local passed = row.missed + (word == 'missed' and 1 or 0)
  if is_job and row.is_last then row.next, row.due = '', '' end
  redis.call('HSET', name, 'slot', row.next)
  local is_behind = is_job and row.late and row.due ~= '' and tonumber(row.due) <= now -- the next one waits for this job
  if is_behind then redis.call('HSET', name, 'held', row.next) else redis.call('HDEL', name, 'held') end
  if is_job then
    redis.call('HSET', name, 'last', row.fire, 'lastjob', row.job)
    redis.call('HINCRBY', name, 'fired', 1)
  end
  if word == 'skipped' then redis.call('HINCRBY', name, 'skipped', 1) end
  if passed > 0 then redis.call('HINCRBY', name, row.overlap == 'queue' and is_job and 'skipped' or 'missed', passed) end
  agenda.put(row.id, row.due)
end

-- Half as long as the last job is there: so slots that catch up follow short jobs closely, and a long one is asked about
-- once a second.
local function find_pause(row, now)
  return math.floor(math.max(SHORTEST, math.min(LONGEST, (now - row.last_began) / 2)))
end

function firing.write(rows, words, key_ttl, now)
  add_jobs(rows, words, now)
  for i, row in ipairs(rows) do
    local word = words[i]
    if word == 'fired' or word == 'joined' or word == 'skipped' or word == 'missed' then
      settle_row(row, word, now)
    elseif word == 'paused' then
      redis.call('HSET', shard.key('schedule', row.id), 'paused', FAIL_REASON)
      redis.call('HDEL', shard.key('schedule', row.id), 'held')
      agenda.put(row.id, '')
    elseif word == 'held' then
      redis.call('HSET', shard.key('schedule', row.id), 'held', row.fire)
      agenda.put(row.id, now + find_pause(row, now))
    elseif word == 'waits' or word == 'foreign' then
      agenda.put(row.id, now + (word == 'waits' and row.wait or FOREIGN_PAUSE))
    end
  end
  cancel_last(rows, words, key_ttl, now)
end
