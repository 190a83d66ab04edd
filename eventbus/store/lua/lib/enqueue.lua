--needs base delays due pointer ready refusing
--exports enqueue
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
-- A job of the default group whose queue cannot be written is refused, one of another group comes back each minute.
function enqueue(jobs, fresh, emitter, now, answer)
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
      push(delayed, queue, row.due, job.id)
      earliest = earliest or next_due()
      if earliest < 0 or row.due < earliest then due_queues[queue] = true end
    end
  end
  local refused, refuse = begin_refusing()
  local function refuse_or_delay(id, _, queue, place)
    if not string.find(id, '@', 1, true) then return refuse(id, now, queue, place) end
    delay_again(id, now, queue, fail_apart)
  end
  place_ready(ready, now, refuse_or_delay)
  place_delayed(delayed, now, refuse_or_delay)
  for _, job in ipairs(next(refused) and jobs or {}) do
    if refused[job.id] then
      if job.pointer then redis.call('DEL', job.pointer) end
      tell_refused(answer, job.index, job.id, refused[job.id])
    end
  end
  for queue in pairs(due_queues) do wake(queue, now) end
  return refused
end
