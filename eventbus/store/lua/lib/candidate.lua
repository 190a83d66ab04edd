--needs base marks
--exports read_body add_claim choose
-- One job that may be claimed: read, and chosen, left, or noted as odd. Writes nothing.

-- A job that stalled so often may kill whatever process runs it. So a worker runs one such job at
-- a time: then the stalls of those beside it do not add up to their failure.
local SUSPECT = 2

-- A member without a body of its own is told what its root was given, read once for all of them; where
-- it has a large one, its field is empty.
function read_body(id, body, tree)
  if body and body ~= '' then return body end
  if body or not tree then return try('GET', key('body', id)) or nil end
  mark_of(tree)
  bodies[tree] = bodies[tree] or try('GET', key('body', tree)) or nil
  return bodies[tree]
end

-- What a worker is told of a job. Absent: nothing counted, due when it was made.
function add_claim(rows, id, index, body, created, attempts, stalls, due, stop)
  local n = #rows
  created = created or '0'
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, index, body, attempts or '0'
  rows[n + 5], rows[n + 6], rows[n + 7], rows[n + 8] = stalls or '0', created, due or created, stop or ''
end

-- Reads one candidate into `plan`; returns its size in bytes. A suspect is claimed alone, or left.
function choose(plan, index, queue, id)
  local v = redis.pcall(
    'HMGET', job_root .. id, 'state', 'queue', 'body', 'created', 'attempts', 'stalls', 'due', 'v', 'order',
    'root', 'stop', 'token', 'tree'
  )
  local is_sound = v[1] == 'waiting' and v[2] == queue.name and not v[8]
    and v[9] and is_number(v[9]) and is_number(v[4]) and is_number(v[5]) and is_number(v[6]) and is_number(v[7])
  if is_sound and v[10] and find_mark(v[10]) ~= '' and not v[11] then
    plan.stopped[#plan.stopped + 1] = id
    return 0
  end
  local body = is_sound and read_body(id, v[3], v[10])
  if not body then
    plan.odd[#plan.odd + 1] = { id = id, queue = queue.name }
    return 0
  end
  if v[6] and tonumber(v[6]) >= SUSPECT then
    if not plan.suspects or plan.ids[1] then
      queue.left = queue.left or {}
      queue.left[id] = true
      queue.left_count = (queue.left_count or 0) + 1
      return 0
    end
    plan.is_alone = true
  end
  add_claim(plan.rows, id, index, body, v[4], v[5], v[6], v[7], v[11])
  plan.ids[#plan.ids + 1] = id
  if v[10] or v[11] or v[12] or v[13] then plan.members[id] = v[11] and 'knows' or 'claimed' end -- the stop that it is told of
  return #body
end
