-- Adds emissions: for each one job in its queue, and one for each group of the queue.
-- Repeat-safe: ids are fresh, so an id that exists is a repeat and changes nothing.
-- Everything is decided before the first write, which is one that a full server refuses.
-- A call has rows of one kind: `plain` ones ask for nothing but perhaps a reply.
-- KEYS: the shard's root
-- head: now emitter queues plain rows
-- queues: queue has_default max_waiting
-- plain: id queue body reply
-- rows: id queue body key print delay due priority lifo reply meeting
--   meeting, when the key stands for a job: 0 join it | 1 join it also if it failed |
--   2 supersede it: cancel it and take its place, whatever became of it
-- answer: now, then for each row that is not simply new: index word job state text
--   word: joined | other (joined, with another payload) | full
--include base
--include ready
--include plain

local now = read_now(take())
local emitter, queue_count, plain_count, row_count = take(), take(), take(), take()
local answer = { now }

local queues, names, are_simple = {}, {}, true -- simple: for the default group alone, and without a limit
for i = 1, queue_count do
  local name, has_default, max = take(), take() == 1, take()
  queues[i] = { name = name, targets = has_default and { { queue = name, suffix = '' } } or {}, max = max }
  names[i] = name
  are_simple = are_simple and has_default and max == ''
end
for i, has_groups in ipairs(redis.call('SMISMEMBER', root .. ':grouped', unpack(names))) do
  if has_groups == 1 then
    are_simple = false
    local targets = queues[i].targets
    for _, group in ipairs(redis.call('SMEMBERS', key('groups', names[i]))) do
      targets[#targets + 1] = { queue = names[i] .. '@' .. group, suffix = '@' .. group }
    end
  end
end

if are_simple and row_count == 0 and are_fresh(plain_count) then
  add_plain(queues, plain_count, emitter, now)
  return answer
end
--include pointer
--include enqueue
--include accept

local taken = accept_all(queues, plain_count, row_count, emitter, now, answer)
enqueue(taken.jobs, taken.fresh, emitter, now)
for _, join in ipairs(taken.joins) do
  try('HSET', key('job', join.job), 'joined', 1)
  try('HSET', key('waiters', join.job), join.emission, join.emitter)
end
if taken.supersedes then
--include finish
--include retain
--include record
--include trees
--include telling
--include stopping
--include cancelling
  for _, job in ipairs(taken.jobs) do
    if job.superseded then
      local reason = 'superseded by job ' .. job.id .. ', which has the same key'
      cancel(job.superseded, job.id, cjson.encode({ type = 'JobCancelled', message = reason }), now, 0)
    end
  end
  local ready = {}
  flush_tells(ready, now)
  place_ready(ready, now)
  flush_ends()
  wake_chores(now)
end
return answer
