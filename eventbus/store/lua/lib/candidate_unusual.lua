--needs base candidate codec fields marks record
--exports read_body choose_unusual name_holder
-- A candidate that is not plain: a member or a root of a tree, one that was tried before, or none at all. Writes nothing.

-- A job that stalled so often may kill whatever process runs it. So a worker runs one such job at
-- a time: then the stalls of those beside it do not add up to their failure.
local SUSPECT = 2

-- A member without a body of its own is told what its root was given, read once for all of them.
function read_body(id, record)
  if record.size then return try('GET', key('body', id)) or nil end
  if record.body ~= '' or not record.root then return record.body ~= '' and record.body or nil end
  mark_of(record.root)
  bodies[record.root] = bodies[record.root] or try('GET', key('body', record.root)) or nil
  return bodies[record.root]
end

-- Reads one candidate into `plan`; returns its size in bytes. A suspect is claimed alone, or left.
function choose_unusual(plan, index, queue, i)
  local id = queue.ids[i]
  local record = read(id, queue.records[i])
  local is_sound = record and record.state == 'waiting' and record.queue == queue.name and not record.is_later
  if is_sound and record.root and find_mark(record.root) ~= '' and not record.stop then
    plan.stopped[#plan.stopped + 1] = id
    return 0
  end
  local body = is_sound and read_body(id, record)
  if not body then
    plan.odd[#plan.odd + 1] = { id = id, queue = queue.name }
    return 0
  end
  if (tonumber(record.stalls) or 0) >= SUSPECT then
    if not plan.suspects or plan.ids[1] then
      queue.left = queue.left or {}
      queue.left[id] = true
      queue.left_count = (queue.left_count or 0) + 1
      return 0
    end
    plan.is_alone = true
  end
  add_claim(plan.rows, id, index, body, record.created, tonumber(record.attempts), record.stalls, record.due, record.stop)
  plan.ids[#plan.ids + 1], plan.orders[#plan.orders + 1] = id, queue.orders[i]
  if record.root or record.tree or record.waited then plan.named[id] = record end
  return #body
end

-- A root that stops is claimed knowing it.
function name_holder(id, record, token, now)
  if record.stop then redis.call('HSET', key('more', id), 'knows', now) end
  if record.root or record.tree then
    record.token, record.claimed = token, now
    redis.call('SET', job_root .. id, codec.encode(record)) -- as it was read in this call
  end
  if record.waited then clear(id, 'waited') end -- last: it may change the record
end
