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
  if job.pointer then set('key', row.key) end
  redis.call('HSET', key('job', id), unpack(fields))
  if job.pointer then point(job.pointer, id, row.print) end -- begins with what a full server lets through
end

-- fresh: queue -> how many of `jobs` go to ready. An add that becomes the earliest due
-- wakes a worker, so that its block ends in time.
local function enqueue(jobs, fresh, emitter, now)
  local ready, delayed, due_queues = {}, {}, {}
  local earliest
  local order = 0
  for _, count in pairs(fresh) do order = order + count end
  if order > 0 then order = reserve(order) end
  for _, job in ipairs(jobs) do
    local row, queue = job.row, job.target.queue
    if not row.due then order = order + 1 end
    local score = score_of(row.priority, row.due and 0 or order, row.lifo)
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
