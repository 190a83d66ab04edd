-- Saves what a running job has reached, adds children to it, and lets it wait for them: in one call,
-- under its lease. Repeat-safe: what is saved is saved again, a child that exists is a repeat, and a job
-- that waits already answers so to the token it waited with. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now id token acknowledges opens waits saves rows edges
--   acknowledges: the stop of its tree is known to it, and what it settles from here on is the end
--   opens: the children may run; until then they are only noted
-- saves: name text
-- rows: id root queue body priority delay on up tree timeout
-- edges: row job needs
-- answer: ok | waiting | stopping (its tree stops, so nothing was added) | lost (the lease)
--include base guard fields format hold holds ready record trees telling leaves rows plant epilogue marks waking

local now = read_now(take())
local id, token, acknowledges, opens, waits = take(), take(), take() == 1, take() == 1, take() == 1
local save_count, row_count, edge_count = take(), take(), take()
local saves = {}
for i = 1, 2 * save_count do saves[i] = take() end
local rows = read_rows(row_count, edge_count)
local record = read_lease(id)

if not record then return 'lost' end
local hold = read_hold(id, token)
if not hold then -- a repeat: nobody has run the job since it began to wait
  return waits and record.waited == token and 'waiting' or 'lost'
end
local adds = row_count > 0 or waits
if acknowledges and record.stop and not record.knows then return 'stopping' end -- it is claimed again, to undo
if adds and (record.stop or record.root and find_mark(record.root) ~= '') then return 'stopping' end

begin_writing()
if save_count > 0 then
  call_many('HSET', key('checkpoints', id), saves)
  add_flag(id, FLAG.SIDE)
end
if acknowledges and record.stop then change(id, 'acked', 1) end
if not adds then return 'ok' end

local ready = {}
local lists = { ready = ready, leaves = {}, due = {} }
plant(rows, id, opens, lists, now)
requeue(lists.leaves, ready)
if opens then open_leaves(id, ready, now) end
if waits then
  change(id, 'state', 'waiting-children', 'token', false, 'waited', token, 'began', Hold.time(hold))
  redis.call('HDEL', key('held', Hold.worker_of(token)), id)
  if not recall_failure(id, now) and redis.call('EXISTS', key('needs', id)) == 0 then release(id, now) end
end
tell_broken(now)
end_call(ready, now)
for queue in pairs(lists.due) do wake(queue, now) end
for _, row in ipairs(has_deadlines and rows or {}) do wake(row.queue, now) end
return waits and 'waiting' or 'ok'
