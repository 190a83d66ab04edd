--needs shard commands tables changes delays endings fields next_due placing putting_off records stopping waking
--exports trees
-- Trees: jobs that wait for others, and what follows from the end of one.
--
--   waiting-children -> waiting (all it needs have ended) -> active -> ended
--   waiting-children -> delayed (the same, and it is not due yet) -> waiting
--   active -> waiting-children (it added children and waits for them: `checkpoint.lua`; or for a time, too: `mixed_waits.lua`)
--
-- `needs:<id>` is the exact set of what a job still waits for (`#child`: its end is enough), `feeds:<id>` lists who waits for it,
-- `members:<root>` whom a tree has, `done:<root>` those that completed, in that order. What must hold:
-- - a job goes on exactly when its set becomes empty: a member leaves a set once, however often it is told;
-- - the end of a job and all that follows from it are one call, or a chore written in that call;
-- - once a root is marked (`stopping.lua`), nothing of its tree starts: every claim looks at the mark;
-- - no tree waits for what cannot come: where one of these keys is not what was written there, the tree stops
--   with StoreCorrupt as soon as that is met, at the latest at the end of a member that cannot be told.
-- Crash windows, each a whole call or none of it: `graph-half-added` (no root is open before its last
-- chunk; an unopened one goes after a minute), `ended-not-told` (a chore tells), `stop-half-swept` (a
-- chore sweeps on, and claims cancel what it has not reached).
trees = {}
trees.OPEN = { waiting = true, delayed = true, parked = true, ['waiting-children'] = true, active = true }
trees.ANY = '#' -- before a child in `needs` whose end releases the job, whatever else is there; no id begins so
trees.KEY_TTL = 86400000 -- of a key whose root ends without a worker of its queue
trees.released = {} -- queue -> records that go to ready
local freed = {} -- those that this call released: their state says so only when it ends
trees.removed = {} -- what `remove` takes away when all are told

-- Delays a job that never began and is not due yet; whoever stops is not kept from it. Returns whether it is delayed.
local function put_off(id, record, now)
  local due = tonumber(record.due)
  if not due or due <= now or record.first or record.stop then return false end
  local earliest = next_due.read()
  fields.change(id, 'state', 'delayed')
  if changes.is_on() then changes.note('delayed', record.queue, id, 'delayed', { due = due }) end
  delays.place({ [record.queue] = { due, id } }, now, putting_off.set_apart)
  if earliest < 0 or due < earliest then waking.wake_queue(record.queue, now) end
  return true
end

-- Puts a job that waits for nothing any more where it can be claimed, or where it waits until it is due.
function trees.release(id, now)
  local record, _, queue = fields.fetch(id)
  if not record then return records.quarantine(id, queue, 'it waited in a tree', now) end
  if record.state ~= 'waiting-children' then return end
  if record.wakes then redis.call('ZREM', shard.root .. ':due', 'wake:' .. id) end
  if record.stop and record.on ~= 'wake' then -- stopped, and nobody deals with it: it ends as its members made it end
    local is_removed = record.on == 'remove' and record.stop == 'failed'
    local state = record.stop == 'failed' and not is_removed and 'failed' or 'cancelled'
    record.is_removed = is_removed
    endings.write(id, record, state, fields.text_of(id, record), now, trees.KEY_TTL)
    if is_removed then trees.removed[#trees.removed + 1] = id end
    return
  end
  placing.gone[id], freed[id] = nil, true
  if put_off(id, record, now) then return end
  record.id = id
  tables.push(trees.released, record.queue, record)
end

-- Stops a tree of which the key `kind:id` is not what was written there; `by` is where that was met.
function trees.break_tree(top, by, kind, id, now)
  local message = 'the key ' .. kind .. ':' .. id .. ' is not as it was written: it is gone, or somebody else wrote it'
  local text = cjson.encode({ type = 'StoreCorrupt', message = message, attempts = 0 })
  if top ~= id or kind ~= 'needs' then return stopping.stop_tree(top, 'failed', by, text, now) end
  -- What a job waits for is not known any more. A member ends as failed; the needs of a root are found anew by a sweep.
  local record = records.read_lease(id)
  if not record or not trees.OPEN[record.state] or record.knows or record.acked then return end
  if record.tree and record.stop then
    redis.call('DEL', shard.key('needs', id))
    fields.change(id, 'swept', 0)
    redis.call('SADD', shard.key('needs', id), '')
    stopping.sweep(id, now)
  elseif record.tree or record.state ~= 'waiting-children' then
    stopping.stop_tree(record.tree and id or record.root, 'failed', by, text, now)
  else
    redis.call('DEL', shard.key('needs', id))
    endings.write(id, record, 'failed', text, now, trees.KEY_TTL)
  end
end

-- Whether a job waits although nothing says for what. It may wait for a signal or a time.
function trees.waits_for_nothing(id)
  if freed[id] or redis.call('EXISTS', shard.key('needs', id)) == 1 then return false end
  local more = (fields.peek(id) or {}).state == 'waiting-children' and (commands.try('HMGET', shard.key('more', id), 'listens', 'wakes') or {})
  return more and not more[1] and not more[2]
end

-- `id` needs `child` no more.
function trees.satisfy(id, child, now)
  local needs = shard.key('needs', id)
  local count = commands.try('SREM', needs, child)
  if count == 1 then
    if redis.call('EXISTS', needs) == 0 then trees.release(id, now) end
  elseif count and commands.try('SREM', needs, trees.ANY .. child) == 1 then
    redis.call('DEL', needs)
    trees.release(id, now)
  elseif not count or trees.waits_for_nothing(id) then
    trees.break_tree(id, child, 'needs', id, now)
  end
end
