--needs shard commands tables changes codec delays fields flag next_due placing plain pointers refusing rooting waking
--exports enqueuing
-- Writes new jobs: records, pointers, and their places in ready or delayed.
enqueuing = {}

-- What is unusual about an emission stands beside its record.
local function write_more(row, id, has_key)
  local more, is_full = {}, row.queues.are_roots and row.due
  for field, value in pairs({
    due = row.due or nil, lifo = row.lifo and 1 or nil, key = has_key and row.key or nil,
    priority = row.priority ~= 0 and row.priority or nil, after = row.after, ripe = row.ripe, keep = row.keep ~= '' and row.keep or nil, tree = is_full and 1 or nil, on = is_full and 'wake' or nil,
  }) do
    more[#more + 1], more[#more + 2] = field, value
  end
  if #more > 0 then redis.call('HSET', shard.key('more', id), unpack(more)) end
  return #more > 0 and FLAG.MORE or 0
end

-- The first write is one that a full server refuses.
local function write_records(jobs, emitter, now)
  local records = {}
  for _, job in ipairs(jobs) do
    local row, body = job.row, job.row.body
    local head = { state = row.due and 'delayed' or 'waiting', created = now, queue = job.target.queue, flags = 0, limit = row.limit }
    if row.reply and job.target.suffix == '' then head.reply = emitter end
    head.is_root = row.queues.are_roots and not row.due
    if #body > plain.SMALL then
      head.size = #body
      records[#records + 1], records[#records + 2] = shard.key('body', job.id), body
    else
      head.body = body
    end
    head.flags = write_more(row, job.id, job.pointer)
    records[#records + 1], records[#records + 2] = shard.job_root .. job.id, codec.encode(head)
  end
  commands.set_all(records)
  for _, job in ipairs(jobs) do
    if job.pointer then pointers.point(job.pointer, job.id, job.row.print, job.after, job.seen) end -- begins with what a full server lets through
  end
end

-- A job of a group that can stand nowhere: it ends as failed, and its record goes by itself after a week.
local function fail_apart(id, now, queue)
  local text = cjson.encode({ type = 'StoreCorrupt', message = 'the queue ' .. queue .. ' cannot be written', attempts = 0 })
  fields.close(id, 'failed', text, now)
  for _, kind in ipairs({ 'job', 'more', 'body', 'result' }) do redis.call('PEXPIRE', shard.key(kind, id), 604800000) end
end

-- An add that becomes the earliest due
-- wakes a worker, so that its block ends in time.
-- A job of the default group whose queue cannot be written is refused, one of another group comes back each minute.
function enqueuing.add(jobs, emitter, now, answer)
  local ready, delayed, due_queues = {}, {}, {}
  local earliest
  write_records(jobs, emitter, now)
  for _, job in ipairs(jobs) do
    local row, queue = job.row, job.target.queue
    if not row.due then
      placing.line_up(ready, queue, { id = job.id, priority = row.priority, lifo = row.lifo, limit = row.limit })
    else
      tables.push(delayed, queue, row.due, job.id)
      earliest = earliest or next_due.read()
      if earliest < 0 or row.due < earliest then due_queues[queue] = true end
    end
  end
  local refused, refuse = refusing.begin()
  local function refuse_or_delay(id, _, queue, place)
    if not string.find(id, '@', 1, true) then return refuse(id, now, queue, place) end
    delays.again(id, now, queue, fail_apart)
  end
  placing.flush(ready, now, refuse_or_delay)
  delays.place(delayed, now, refuse_or_delay)
  for _, job in ipairs(jobs) do
    if job.row.queues.are_roots and not refused[job.id] then rooting.note(job.target.queue, job.id, job.index, job.row.due, now) end
  end
  for _, job in ipairs(changes.is_on() and jobs or {}) do
    if not refused[job.id] then changes.note('added', job.target.queue, job.id, job.row.due and 'delayed' or 'waiting', { due = job.row.due }) end
  end
  for _, job in ipairs(next(refused) and jobs or {}) do
    if refused[job.id] then
      if job.pointer and not job.after then redis.call('DEL', job.pointer) end
      refusing.tell(answer, job.index, job.id, refused[job.id])
    end
  end
  for queue in pairs(due_queues) do waking.wake_queue(queue, now) end
  return refused
end
