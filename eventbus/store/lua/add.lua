-- Adds emissions: for each one job in its queue, and one for each group of the queue.
-- Repeat-safe: ids are fresh, so an id that exists is a repeat and changes nothing.
-- Everything is decided before the first write, which is one that a full server refuses.
-- A call has rows of one kind: `plain` ones ask for nothing but perhaps a reply.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now emitter attendance queues timeouts plain rows
--   attendance: see `attend.lua`; '' where the emitter said it lately
-- queues: queue has_default max_waiting traits
--   traits: the sum of 1 if what is added there are roots of trees that deal with their stop themselves, and have no members
--     yet; they have no groups | 2 if it is added only where a worker serves the queue, and each group that takes it
-- timeouts: row timeout
--   row: the number of a root among all rows, from 0 | timeout: from when it is due, ms
-- plain: id queue body reply
-- rows: id queue body key print delay due priority lifo reply meeting span limit keep
--   limit: the limit key, up to 48 characters, or '' | meeting, when the key stands for a job: 0 join it | 1 join it also if it failed |
--   2 supersede it: cancel it and take its place, whatever became of it |
--   3 throttle | 4 debounce | 5 keep the last (`merging.lua`)
--   span: of 3 the window; of 4 how long the job waits at most, from its first row on, '' for no limit; ms
--   keep: how long the job is kept once it has ended, `completed,failed`, in ms, each may be empty: as its queue says; '' for none
-- answer: now, for each queue how many jobs an emission makes there, then for each row that is not simply new:
--   index word job state text
--   word: joined | other (joined, with another payload) | full (text: the queue, state: served | unserved) |
--     unserved (it needs a worker, and the queue `text` has none) |
--     foreign (somebody else's value stands in the place of a key of the queue, text: the key; nothing was added) |
--     later (not looked at, for the rows before it make as many jobs as a call may, or one of them merges with its key) |
--     pending (of a root: its key stands for a tree that is not whole yet; nothing was added)
--   state of a job that was joined: completed | failed | cancelled | open (its end will be told) | unlisted (open, but
--     so many wait for it that the emitter has to ask)
--include shard args commands guard plain_rows floors rooting

local now = args.take_now()
local emitter, attendance, queue_count, timeout_count, plain_count, row_count = args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local answer = { now }

local queues, names, are_simple = {}, {}, true -- simple: for the default group alone, and without a limit or a condition
for i = 1, queue_count do
  local name, has_default, max, traits = args.take(), args.take() == 1, args.take(), args.take()
  queues[i] = { name = name, targets = has_default and { { queue = name, suffix = '' } } or {}, max = max, are_roots = traits % 2 == 1, needs_worker = traits > 1 }
  names[i] = name
  are_simple = are_simple and has_default and max == '' and traits < 2
end
for i, has_groups in ipairs(redis.call('SMISMEMBER', shard.root .. ':grouped', unpack(names))) do
  if has_groups == 1 and not queues[i].are_roots then
    are_simple = false
    local targets, groups = queues[i].targets, commands.try('SMEMBERS', shard.key('groups', names[i]))
    queues[i].is_foreign = not groups
    for _, group in ipairs(groups or {}) do
      targets[#targets + 1] = { queue = names[i] .. '@' .. group, suffix = '@' .. group }
    end
  end
end

for i = 1, queue_count do answer[i + 1] = #queues[i].targets end
rooting.read_timeouts(timeout_count)

floors.hold(attendance, now)
if are_simple and row_count == 0 and plain_rows.add(queues, plain_count, emitter, now, answer) then return answer end
--include pointers enqueuing accepting joining

local taken = accepting.take_all(queues, plain_count, row_count, emitter, now, answer)
local refused = enqueuing.add(taken.jobs, emitter, now, answer)
rooting.flush(now)
for _, join in ipairs(taken.joins) do
  if refused[join.job] then
    if join.state_at then answer[join.state_at - 2], answer[join.state_at + 1] = 'foreign', refused[join.job] end
  elseif not joining.add_emitter(join.job, join.emitter) then
    answer[join.state_at] = 'unlisted'
  end
end
if taken.merges[1] then
  --include merging
  merging.add(taken.merges, taken.fresh, emitter, now, answer)
end
if taken.supersedes then
  --include holds cancelling epilogue
  local superseded = {}
  for _, job in ipairs(taken.jobs) do
    superseded[#superseded + 1] = job.superseded
    superseded[#superseded + 1] = job.following
  end
  holds.load(superseded)
  for _, job in ipairs(taken.jobs) do
    if job.superseded then
      local reason = 'superseded by job ' .. job.id .. ', which has the same key'
      cancelling.cancel(job.superseded, job.id, cjson.encode({ type = 'JobCancelled', message = reason }), now, 0)
      if job.following then cancelling.cancel(job.following, job.id, cjson.encode({ type = 'JobCancelled', message = reason }), now, 0) end
    end
  end
  local ready = {}
  epilogue.end_call(ready, now)
end
return answer
