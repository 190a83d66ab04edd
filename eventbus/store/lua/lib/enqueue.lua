-- Writes new jobs: records, pointers, and their places in ready or delayed.
local function write_record(job, order, emitter, now)
  local row, id = job.row, job.id
  local fields = { 'queue', job.target.queue, 'state', row.due and 'delayed' or 'waiting', 'order', order, 'created', now }
  local n = #fields
  local function set(field, value)
    fields[n + 1], fields[n + 2] = field, value
    n = n + 2
  end
  if #row.body <= 64 then
    set('body', row.body)
  else
    redis.call('SET', key('body', id), row.body)
  end
  if row.reply and job.target.suffix == '' then set('reply', emitter) end
  if row.due then set('due', row.due) end
  if row.lifo then set('lifo', 1) end
  if job.pointer then
    set('key', row.key)
    point(job.pointer, id, row.print)
  end
  redis.call('HSET', key('job', id), unpack(fields))
end

-- fresh: queue -> how many of `jobs` go to ready. An add that becomes the earliest due
-- wakes a worker, so that its block ends in time.
local function enqueue(jobs, fresh, emitter, now)
  local next_order, ready, delayed, due_queues = {}, {}, {}, {}
  local earliest
  for queue, count in pairs(fresh) do
    next_order[queue] = reserve(queue, count)
  end
  for _, job in ipairs(jobs) do
    local row, queue = job.row, job.target.queue
    local order = 0
    if not row.due then
      order = next_order[queue] + 1
      next_order[queue] = order
    end
    local score = score_of(row.priority, order, row.lifo)
    write_record(job, score, emitter, now)
    if not row.due then
      push(ready, queue, score, job.id)
    else
      push(delayed, 'delayed', row.due, job.id)
      earliest = earliest or tonumber(redis.call('ZRANGE', root .. ':delayed', 0, 0, 'WITHSCORES')[2]) or math.huge
      if row.due < earliest then due_queues[queue] = true end
    end
  end
  place_ready(ready, now)
  if delayed.delayed then call_many('ZADD', root .. ':delayed', delayed.delayed) end
  for queue in pairs(due_queues) do wake(queue, now) end
end
