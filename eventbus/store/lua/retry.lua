-- Lets plain jobs that failed or were cancelled wait again, or completed ones if that is asked for, as if they were new: without attempts, stalls and outcome. What they
-- saved, their journal and their inbox stay, as for a further attempt, and the outcome stands in their log.
-- Nobody who was told of the end hears of it again: whoever asks for the outcome from now on, or joins the job by its key,
-- gets the next one.
-- Repeat-safe: the record names the call that did it last, and that call is answered the same, whatever became of the job since.
-- Crash windows: `answer-lost` (the caller repeats the call and hears `retried`); `swept-first` (retention has removed the job:
-- `unknown`); `two-at-once` (the second one finds a job that waits); `caller-dies` (what was sent is done, and the rest is not).
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now call states jobs
--   call: fresh for each request, the same when it is sent again | states: in which it may be: `failed`, `cancelled`, `completed`
-- jobs: id
-- answer: for each job: retried | key (its key stands for another job) | ungrouped (its group is no more) | damaged |
--   member (of a tree) | root (of one) | unknown | or else its state
--include shard args commands changes guard codec completed fields flag placing records pointers putting_off

local now = args.take_now()
local call, states, count = args.take(), args.take(), args.take()
local ENDED = { failed = true, cancelled = true, completed = true }
local may, words, ready, seen = {}, {}, {}, {}
for _, state in ipairs(states) do may[state] = ENDED[state] end

local function is_grouped(queue)
  local base, group = string.match(queue, '^([^@]*)@(.*)$')
  return not base or (commands.try('SMISMEMBER', shard.key('groups', base), group) or { 0 })[1] == 1
end

-- The key of the pointer that stands for the job; '' if none does, nil if it stands for another one.
local function find_pointer(id, record)
  local pointer = record.key and shard.key('key', record.queue .. ':' .. record.key)
  local known = pointer and commands.try('HGET', pointer, 'job')
  if not known then return '' end
  return known == id and pointer or nil
end

-- What is to be answered of a job that stays as it is, or nil.
local function refuse(id, record, why)
  if not record then return why == 'missing' and 'unknown' or 'damaged' end
  if record.is_later or redis.call('EXISTS', shard.key('raw', id)) == 1 then return 'damaged' end
  if record.retrier == call then return 'retried' end
  if record.removed then return 'unknown' end
  if record.root then return 'member' elseif record.tree then return 'root' end
  if not may[record.state] then return record.state end
  if not is_grouped(record.queue) then return 'ungrouped' end
  return not find_pointer(id, record) and 'key' or nil
end

local function write(id, record)
  local state, queue, text = record.state, record.queue, fields.text_of(id, record)
  local entry = (tonumber(record.entry) or 0) + 1 -- it may have left a tombstone
  local more = { 'retrier', call, 'due', commands.whole(now), 'entry', entry }
  local has_run = record.worker and record.worker ~= ''
  record.stopped = record.cancel or record.stopped
  record.first = record.first or has_run and record.ended - record.lasted
  for _, field in ipairs({ 'key', 'priority', 'lifo', 'keep', 'inbox', 'first', 'stopped' }) do
    if record[field] then more[#more + 1], more[#more + 2] = field, record[field] end
  end
  redis.call('HSET', shard.key('more', id), 'retrier', call) -- a full server refuses it
  redis.call('DEL', shard.key('more', id), shard.key('result', id), shard.key('waiters', id), shard.key('outcome', id))
  redis.call('HSET', shard.key('more', id), unpack(more))
  local flags = FLAG.MORE + bit.band(record.flags, FLAG.SIDE + FLAG.JOURNAL)
  local head = { state = 'waiting', created = record.created, queue = queue, flags = flags, limit = record.limit, body = record.body, size = record.size }
  redis.call('SET', shard.job_root .. id, codec.encode(head))
  if state ~= 'completed' and (has_run or state == 'failed') and commands.try('LINDEX', shard.key('log', id), -1) ~= text then records.note_error(id, records.add_times(text, record.due, record.ended - record.lasted, record.ended, record.worker, 'failed')) end
  if state == 'completed' then completed.unlist(queue, id, record.ended) else redis.call('ZREM', shard.key(state, queue), id) end
  commands.try('ZREM', shard.key('leaving', queue), id)
  local pointer = find_pointer(id, record)
  if pointer ~= '' then
    redis.call('HDEL', pointer, 'state', 'text')
    redis.call('PERSIST', pointer)
  elseif record.key then -- its time was over; whoever emits with the key joins the job again
    pointers.point(shard.key('key', queue .. ':' .. record.key), id, '')
  end
  if changes.is_on() then changes.note('added', queue, id, 'waiting') end
  placing.line_up(ready, queue, { id = id, priority = record.priority, lifo = record.lifo, entry = entry, limit = record.limit })
end

local plan = {}
for i = 1, count do
  local id = args.take()
  local record, why = fields.fetch(id)
  words[i] = refuse(id, record, why)
  if not words[i] then
    words[i] = 'retried'
    if not seen[id] then plan[#plan + 1] = { id = id, record = record } end
    seen[id] = true
  end
end
for _, job in ipairs(plan) do write(job.id, job.record) end
placing.flush(ready, now, putting_off.put_off)
return words
