--needs shard commands cells changes chore_list delays endings fields holds lines marks placing records trees
--exports stopping
-- Stopping a tree: one mark on its root, which every claim looks at, then a sweep in bounded steps.
--   root: waiting-children | waiting | delayed | parked -> waiting-children -> waiting, its activation undoes
--         active -> (settles) -> the same, unless its activation has acknowledged the mark (`checkpoint.lua`)
-- The first mark stays: its cause (failed | cancelled | timeout) and who made it (a member, a call).
-- From then on the root waits for those alone that still run: the sweep puts them into its `needs`,
-- where '' stands for the sweep itself; so none is missed and none is waited for twice. What nobody
-- runs ends as cancelled, untold: those who need it end the same way. A root whose policy is not `wake` ends itself when none runs.
stopping = {}
local to_sweep = bounds.HEAVY_ROWS -- members that one call still looks at

-- Takes a job that nobody runs out of the place where it waits. Returns whether a tombstone is left there.
function stopping.take_out(id, record)
  placing.gone[id] = true
  if record.wakes then redis.call('ZREM', shard.root .. ':due', 'wake:' .. id) end
  if record.state == 'waiting' then return lines.leave(id, record) end
  local is_listed = record.state == 'delayed' or record.state == 'parked'
  if is_listed and commands.try('ZREM', shard.key(record.state, record.queue), id) and record.state == 'delayed' then delays.forget(record.queue) end
  return false
end

-- Ends a member that never ran, or was suspended; its dependents end by the same sweep.
local function drop_member(id, record, text, now)
  stopping.take_out(id, record)
  redis.call('DEL', shard.key('needs', id))
  fields.close(id, 'cancelled', text, now)
  cells.note(record.queue, 'cancelled')
  endings.tell(id, record, 'cancelled', text)
end

function stopping.stop_member(id, top, is_gentle, now)
  local record = records.read_lease(id)
  if not record or not trees.OPEN[record.state] or record.root ~= top then return end
  if record.tree then
    commands.try('SADD', shard.key('needs', top), id)
    local why = cjson.encode({ type = 'JobCancelled', message = 'the tree that it is part of stops: ' .. top })
    stopping.stop_tree(id, 'cancelled', top, why, now, is_gentle)
  elseif record.state ~= 'active' then
    drop_member(id, record, '{"type":"JobCancelled","message":"its tree stopped"}', now)
  else
    commands.try('SADD', shard.key('needs', top), id)
    if not is_gentle then
      if not record.cancel then fields.change(id, 'cancel', top) end -- else by itself
      holds.ask_holder(id, record.token, now)
    end
  end
end

function stopping.sweep(top, now)
  local record = fields.fetch(top)
  if not record or not record.stop then return end
  local first, count = tonumber(record.swept) or 0, to_sweep
  local ids = count > 0 and commands.try('LRANGE', shard.key('members', top), first, first + count - 1) or {}
  to_sweep = count - #ids
  for _, id in ipairs(ids) do stopping.stop_member(id, top, record.gentle, now) end
  fields.change(top, 'swept', first + #ids)
  if #ids == count then
    chore_list.add('stop', top)
  else
    trees.satisfy(top, '', now)
  end
end

-- A root whose last chunk is there, or is awaited no more.
function stopping.end_pending(id)
  if fields.clear(id, 'pending') == 1 then redis.call('ZREM', shard.root .. ':due', 'unopened:' .. id) end
end

-- A gentle stop that is asked for again, not so gently, waits for what runs no more, so that a member that hangs does
-- not hold a tree that is cancelled or out of time. The first stop stays its cause and its author.
local function harden(top, record, now)
  if record.knows or record.state ~= 'waiting-children' and record.state ~= 'active' then return false end
  if fields.clear(top, 'gentle') == 0 then return false end
  fields.change(top, 'swept', 0)
  if record.state == 'active' then holds.ask_holder(top, record.token, now) end
  commands.try('SADD', shard.key('needs', top), '')
  stopping.sweep(top, now)
  return false
end

-- Undoing has counts of its own. But what ran when a lease ran out may be in doubt (`lost`).
local function wait_anew(id)
  local record = fields.fetch(id) or {}
  if record.stalls then fields.change(id, 'lost', record.stalls) end
  if changes.is_on() and record.state ~= 'waiting-children' then changes.note('suspended', record.queue or '', id, 'waiting-children') end
  fields.clear(id, 'attempts', 'stalls', 'spared', 'alone', 'crowd', 'fatal', 'listens', 'wakes')
  fields.change(id, 'state', 'waiting-children', 'attempts', 0, 'token', false)
end

-- A gentle stop lets what runs finish its attempt; so do those of a tree whose member failed, and of the trees in it.
-- Returns whether this call stopped the tree; `text`: the outcome of a root that nobody wakes, or its activation's error.
function stopping.stop_tree(top, cause, by, text, now, is_gentle)
  local record = records.read_lease(top)
  if not record or not trees.OPEN[record.state] then return false end
  is_gentle = is_gentle or cause == 'failed'
  if record.stop then return not is_gentle and harden(top, record, now) end
  fields.change(top, 'stop', cause, 'stopper', by)
  if is_gentle then fields.change(top, 'gentle', 1) end
  fields.note_result(top, text)
  marks.read(top)
  marks.causes[top] = cause
  stopping.end_pending(top)
  if record.state ~= 'active' then
    if stopping.take_out(top, record) then fields.change(top, 'entry', (tonumber(record.entry) or 0) + 1) end -- for it will wait again
    wait_anew(top)
  elseif not is_gentle then
    holds.ask_holder(top, record.token, now)
  end
  redis.call('DEL', shard.key('needs', top))
  commands.try('SADD', shard.key('needs', top), '')
  stopping.sweep(top, now)
  return true
end

-- A root that settles while it is marked, before its activation knew, runs again, to undo.
function stopping.settle_root(id, now)
  wait_anew(id)
  if redis.call('EXISTS', shard.key('needs', id)) == 0 then trees.release(id, now) end
end
