--needs shard args commands codec fields journals plain telling trees waking
--exports mixed_waits
-- Waits of a running job for more than all of its new children: for children that are there already, for the first of
-- several, for a time, for a signal, or for whichever of these comes first.
--   needs:<id>   the children, as always; `#child` where the end of that one releases the job (`trees.lua`)
--   wakes        the field with the time, which stands in `due` as `wake:<id>`; listens: a signal releases the job
-- What must hold: a wait ends once. Whatever ends it takes its needs and its time away in that call, so that what comes
-- later finds nothing: another child, the time, a signal. So a chore of an earlier wait releases no later one.
-- A wait that is said in several calls is gathered: `gathers` names it, so that nothing of another one is left in it.
-- Crash windows: `suspend-not-answered` (the repeat is known by the token with which the job waits), `dies-while-suspending`
-- (the next claim forgets what was gathered, and so does a wait of another name), `signal-meets-suspend` and
-- `child-ends-before-suspend` (which call is first decides, and both ways end in one release), `timer-and-signal` (the
-- first one takes away what the other one would find).
mixed_waits = {}

-- Reads which of the awaited children have not completed, before the first write. rows: of the same call.
-- Returns a list of id, and whether it is new; `ended`: it did not complete. What has no record has ended, too.
function mixed_waits.read(count, rows)
  local names, ids, new, found = {}, {}, {}, {}
  for i = 1, count do
    ids[i] = args.take()
    names[i] = shard.job_root .. ids[i]
  end
  if count == 0 then return found end
  for _, row in ipairs(rows) do new[row.id] = not row.is_known end
  for i, text in ipairs(commands.get_all(names)) do
    local ended = text and plain.has_ended(text) and (codec.decode(text) or {}).state
    if ended ~= 'completed' and (text or new[ids[i]]) then
      found[#found + 1] = { id = ids[i], is_new = new[ids[i]], ended = ended }
    end
  end
  return found
end

-- Lets the end of a child be told to the job, once.
local function add_dependent(id, child, is_new)
  local feeds = shard.key('feeds', child)
  if is_new or commands.try('LPOS', feeds, id) == false then commands.try('RPUSH', feeds, id) end
end

-- Notes that the job awaits children that it has added before, perhaps without waiting, and now adds again.
function mixed_waits.note_known(id, children)
  for _, child in ipairs(children or {}) do
    local record = fields.peek(child)
    if record and trees.OPEN[record.state] then
      commands.try('SADD', shard.key('needs', id), child)
      add_dependent(id, child)
    end
  end
end

-- Notes that the job awaits these, and is told of their ends. record: as it was read in this call.
function mixed_waits.note(id, record, wait, awaited)
  local needs, members = shard.key('needs', id), {}
  if wait.call == '' or record.gathers ~= wait.call then
    redis.call('DEL', needs) -- of a wait that was not said to its end
    if wait.call ~= '' then fields.change(id, 'gathers', wait.call) end
  end
  for _, child in ipairs(awaited) do
    members[#members + 1] = (wait.is_first and trees.ANY or '') .. child.id
    if not child.ended then add_dependent(id, child.id, child.is_new) end
  end
  commands.call_many('SADD', needs, members)
end

-- Forgets what was gathered of a wait.
function mixed_waits.forget(id)
  redis.call('DEL', shard.key('needs', id))
  fields.clear(id, 'gathers')
end

-- Whether a job that begins to wait is released at once.
local function is_over(id, wait)
  if wait.heard ~= '' and journals.count_signals(id) ~= wait.heard then return true end -- also if a failover lost some
  if wait.delay ~= '' and wait.delay <= 0 then return true end
  if wait.is_first and redis.call('SCARD', shard.key('needs', id)) < wait.total then return true end
  local sleeps = wait.total == 0 and (wait.delay ~= '' or wait.heard ~= '')
  return not sleeps and redis.call('EXISTS', shard.key('needs', id)) == 0
end

-- The job has given up its lease. It has got on, so its trouble is forgotten. If its time is the next one of the shard,
-- a worker must hear of it.
function mixed_waits.begin(id, queue, wait, now)
  fields.clear(id, 'stalls', 'spared', 'alone', 'crowd', 'fatal', 'attempts', 'gathers')
  fields.change(id, 'attempts', 0)
  if is_over(id, wait) then
    redis.call('DEL', shard.key('needs', id))
    return trees.release(id, now)
  end
  if wait.heard ~= '' then fields.change(id, 'listens', 1) end
  if wait.delay == '' then return end
  fields.change(id, 'wakes', commands.whole(now + wait.delay))
  redis.call('ZADD', shard.root .. ':due', now + wait.delay, 'wake:' .. id)
  if redis.call('ZRANGE', shard.root .. ':due', 0, 0)[1] == 'wake:' .. id then waking.wake_queue(queue, now) end
end

-- Tells the job of the awaited children that had ended before, and did not complete.
function mixed_waits.tell(id, awaited, now)
  for _, child in ipairs(awaited) do
    if child.ended then
      local record = fields.fetch(child.id) or { state = child.ended }
      telling.tell_failure(id, { id = child.id, state = record.state, up = record.up }, now)
    end
  end
end
