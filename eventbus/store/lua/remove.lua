-- Removes plain jobs that nobody runs. One that waits, is delayed or parked is cancelled first, and whoever awaits it is told.
-- Trees go by their roots, where `states` has `root`, and only once they have ended: their members go with them (`retention.lua`).
-- What ended so long ago that nobody may ask for it is gone with this call. The others are listed no more, and stand among
-- those that go at a time of their own (`leaving.lua`): two minutes after their end, and two more while an emitter is slow.
-- Until then an emitter finds its outcome, and a repeated add makes no second job.
-- Repeat-safe: the record names the call that removed it, and that call is answered the same while the record is there.
-- Crash windows: `answer-lost` (a repeat hears `removed`, or `unknown` once the record is gone); `claimed-first` (`active`,
-- and nothing is done); `retried-first` (it waits, so it is cancelled).
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now key_ttl call text states jobs
--   call: fresh for each request, the same when it is sent again | text: the outcome that who awaits an open job hears
--   states: in which it may be; `root` beside states of an end: it may be the root of a tree
-- jobs: id
-- answer: for each job: removed | active | member (of a tree) | root (of one) | unknown | or else its state
--include shard args commands changes guard codec fields completed floors holds leaving cancelling epilogue

local now = args.take_now()
local key_ttl, call, text, states, count = args.take(), args.take(), args.take(), args.take(), args.take()
local OPEN_ONES = { waiting = true, delayed = true, parked = true }
local may, words, queues, plan = {}, {}, {}, {}
for _, state in ipairs(states) do may[state] = true end

local function refuse(id, record)
  if not record then return 'unknown' end
  if record.removed == call then return 'removed' elseif record.removed then return 'unknown' end
  if record.root then return 'member' elseif record.tree and not may.root then return 'root' end
  if record.state == 'waiting' and (record.token or holds.find(id)) then return 'active' end
  return not may[record.state] and record.state or nil
end

local function unlist(id, record)
  local state, queue = record.state, record.queue
  local ends = state == 'completed' and record.ended or math.max(record.ended, record.ended + floors.WINDOW)
  if state == 'completed' then completed.unlist(queue, id, record.ended) else commands.try('ZREM', shard.key(state, queue), id) end
  if commands.try('ZADD', shard.key('leaving', queue), 'LT', commands.whole(ends), id) then queues[queue] = true end
end

local ids = {}
for i = 1, count do ids[i] = args.take() end
holds.load(ids)
for i, id in ipairs(ids) do
  local record = fields.fetch(id)
  words[i] = refuse(id, record)
  if not words[i] then
    words[i] = 'removed'
    plan[#plan + 1] = { id = id, record = record }
  end
end
shard.begin_writing()
for _, job in ipairs(plan) do
  fields.change(job.id, 'removed', call, 'keep', '0,0')
  if OPEN_ONES[job.record.state] then cancelling.cancel(job.id, call, text, now, key_ttl) else unlist(job.id, job.record) end
  changes.note('removed', job.record.queue, job.id) -- now, because nobody may look at it any more
end
epilogue.end_call({}, now)
for queue in pairs(queues) do leaving.sweep(queue, now) end
return words
