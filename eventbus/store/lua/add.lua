-- Adds emissions: for each one job in its queue, and one for each group of the queue.
-- Repeat-safe: ids are fresh, so an id that exists is a repeat and changes nothing.
-- Everything is decided before the first write, which is one that a full server refuses.
-- KEYS: the shard's root
-- head: now emitter queues rows
-- queues: queue has_default max_waiting
-- rows: id queue body key print delay due priority lifo reply reuse
-- answer: now, then for each row that is not simply new: index word job state text
--   word: joined | other (joined, with another payload) | full
--include base
--include ready
--include pointer

local now = read_now(take())
local emitter, queue_count, row_count = take(), take(), take()
local answer, jobs, joins = { now }, {}, {}
local fresh = {} -- queue -> how many of this call go to ready

local function tell(index, word, job, state, text)
  for _, value in ipairs({ index, word, job, state, text }) do
    answer[#answer + 1] = value
  end
end

local queues = {}
for i = 1, queue_count do
  local name, has_default, max = take(), take() == 1, take()
  local targets = {}
  if has_default then targets[1] = { queue = name, suffix = '' } end
  for _, group in ipairs(redis.call('SMEMBERS', key('groups', name))) do
    targets[#targets + 1] = { queue = name .. '@' .. group, suffix = '@' .. group }
  end
  queues[i] = { targets = targets, max = max }
end

local function read_row()
  local row = { id = take(), queues = queues[take()], body = take(), key = take(), print = take() }
  row.delay, row.due = take(), take()
  row.priority, row.lifo, row.reply, row.reuse = take(), take() == 1, take() == 1, take() == 1
  if row.delay ~= '' then row.due = now + row.delay end
  if row.due == '' or row.due <= now then row.due = nil end
  return row
end

-- One target of a row, without writing: nil for a repeat, a job to join, or a new one.
local function decide(row, target)
  local id = row.id .. target.suffix
  if redis.call('EXISTS', key('job', id)) == 1 then return nil end
  if row.key == '' then return { id = id, target = target, row = row } end
  local pointer = key('key', target.queue .. ':' .. row.key)
  local job, print, state, text = follow(pointer, row.id, row.reuse)
  if job == id then return nil end
  if not job then return { id = id, target = target, row = row, pointer = pointer } end
  return { join = job, target = target, word = print == row.print and 'joined' or 'other', state = state, text = text }
end

local function is_full(row, choice)
  local max, queue = row.queues.max, choice.target.queue
  if max == '' or choice.join or row.due then return false end
  return redis.call('ZCARD', key('ready', queue)) + (fresh[queue] or 0) >= max
end

local function accept(index, row, choice)
  if choice.join then
    if not choice.state then
      joins[#joins + 1] = { job = choice.join, emission = row.id, emitter = row.reply and emitter or '' }
    end
    if choice.target.suffix == '' then
      tell(index, choice.word, choice.join, choice.state or 'open', choice.text or '')
    end
    return
  end
  jobs[#jobs + 1] = choice
  if choice.pointer then planned[choice.pointer] = { job = choice.id, print = row.print } end
  if not row.due then fresh[choice.target.queue] = (fresh[choice.target.queue] or 0) + 1 end
end

-- A row is accepted whole or, when one of its queues is full, not at all.
for index = 0, row_count - 1 do
  local row, choices, full = read_row(), {}, false
  for _, target in ipairs(row.queues.targets) do
    local choice = decide(row, target)
    if choice then
      choices[#choices + 1] = choice
      full = full or is_full(row, choice)
    end
  end
  if full then
    tell(index, 'full', row.id, '', '')
  else
    for _, choice in ipairs(choices) do accept(index, row, choice) end
  end
end

--include enqueue

enqueue(jobs, fresh, emitter, now)
for _, join in ipairs(joins) do
  try('HSET', key('job', join.job), 'joined', 1)
  try('HSET', key('waiters', join.job), join.emission, join.emitter)
end
return answer
