-- Saves what a running job has reached, adds children to it, and lets it wait for them: in one call,
-- under its lease. Repeat-safe: what is saved is saved again, a child that exists is a repeat, and a job
-- that waits already answers so to the token it waited with. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now id token acknowledges opens waits mixed delay heard first call total saves rows edges awaited
--   acknowledges: the stop of its tree is known to it, and what it settles from here on is the end
--   opens: the children may run; until then they are only noted
--   mixed: it awaits the children named last, and those alone (`mixed_waits.lua`), or until:
--     delay: ms from now have passed, or '' | heard: it was sent more signals than these, or '' | first: one of them has ended
--     call: the name of a wait that is said in several calls, or '' | total: how many children it awaits in all of them
-- saves: name text
-- rows: id root queue body priority delay on up tree timeout
-- edges: row job needs
-- awaited: id
-- answer: ok | waiting | stopping (its tree stops, or it was cancelled itself, so nothing was added) | lost (the lease)
--include shard args commands changes guard fields flag hold holds placing records trees telling tree_leaves edges planting epilogue marks mixed_waits waking

local now = args.take_now()
local id, token, acknowledges, opens, waits = args.take(), args.take(), args.take() == 1, args.take() == 1, args.take() == 1
local mixed, delay, heard, first, call, total = args.take() == 1, args.take(), args.take(), args.take() == 1, args.take(), args.take()
local save_count, row_count, edge_count, awaited_count = args.take(), args.take(), args.take(), args.take()
local saves = {}
for i = 1, 2 * save_count do saves[i] = args.take() end
local rows = edges.read_rows(row_count, edge_count)
local awaited = mixed_waits.read(awaited_count, rows)
local record = fields.fetch(id)
local top = row_count > 0 and records.read_lease(rows[1].root) -- a root that gets members is brief no more, and names its holder

if not record then return 'lost' end
local hold = holds.read(id, token)
if not hold then -- a repeat: nobody has run the job since it began to wait
  return waits and record.waited == token and 'waiting' or 'lost'
end
local adds = row_count > 0 or awaited_count > 0 or waits
if acknowledges and record.stop and not record.knows then return 'stopping' end -- it is claimed again, to undo
if adds and (record.stop or record.cancel or record.root and marks.find(record.root) ~= '') then return 'stopping' end

shard.begin_writing()
if save_count > 0 then
  commands.call_many('HSET', shard.key('checkpoints', id), saves)
  FLAG.add(id, FLAG.SIDE)
end
if acknowledges and record.stop then fields.change(id, 'acked', 1) end
if not adds then return 'ok' end

if top and top.is_root then fields.change(rows[1].root, 'tree', 1, 'on', 'wake', 'token', top.token, 'claimed', top.claimed) end
local lists = { ready = {}, leaves = {}, due = {} }
if record.gathers and not mixed then mixed_waits.forget(id) end -- it said a wait only half, and says another one
planting.write(rows, id, opens, lists, now)
mixed_waits.note_known(id, edges.awaited_again[id])
placing.requeue(lists.leaves, lists.ready)
if opens then tree_leaves.open(id, lists.ready, now) end
mixed = mixed and { delay = delay, heard = heard, is_first = first, call = call, total = total }
if mixed then mixed_waits.note(id, record, mixed, awaited) end
if waits then
  fields.change(id, 'state', 'waiting-children', 'token', false, 'waited', token, 'began', Hold.time(hold), 'first', record.first or Hold.time(hold))
  redis.call('HDEL', shard.key('held', Hold.worker_of(token)), id)
  if changes.is_on() then changes.note('suspended', record.queue, id, 'waiting-children', { worker = Hold.worker_of(token) }) end
  if Hold.place_of_slot(hold) ~= '' then
    --include slots
    slots.release(hold, now)
    slots.flush(now)
  end
  if mixed then mixed_waits.begin(id, record.queue, mixed, now) end
  if not telling.recall_failure(id, now) and not mixed and redis.call('EXISTS', shard.key('needs', id)) == 0 then trees.release(id, now) end
end
edges.tell_broken(now)
mixed_waits.tell(id, awaited, now)
epilogue.end_call(lists.ready, now)
for queue in pairs(lists.due) do waking.wake_queue(queue, now) end
for _, row in ipairs(planting.has_deadlines and rows or {}) do waking.wake_queue(row.queue, now) end
return waits and 'waiting' or 'ok'
