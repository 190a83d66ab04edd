--needs shard args commands tables next_due waking
--exports rooting
-- Roots of trees that are added as emissions are: without members, and with the policy `wake`. Such a root is brief. Its
-- record says by its state alone (9, and 10 once it has completed) that it is one, and it does not name who holds it. So
-- it costs what a plain job does, its place among the open roots, and its deadline if it has one.
-- What must hold:
-- - a brief root waits, is held, or has completed. Whatever else becomes of it, and members that it gets, make its record
--   a full one (`fields.lua`, `checkpoint.lua`), which says `tree` and `on` like that of any other root;
-- - a brief root has no members. So who removes it looks for none.
rooting = {}
local timeouts = {} -- row -> ms
local listed = {} -- queue -> flat list of time, root
local deadlines, hurried = {}, {} -- flat list of time, entry of `due`; queues of those that became the earliest
local earliest = nil -- before this call wrote any

function rooting.read_timeouts(count)
  if count > 0 then earliest = next_due.read() end
  for _ = 1, count do
    local row = args.take()
    timeouts[row] = args.take()
  end
end

-- A root that this call adds. due: nil if that is now.
function rooting.note(queue, id, row, due, now)
  tables.push(listed, queue, commands.whole(now), id)
  if not timeouts[row] then return end
  local deadline, n = (due or now) + timeouts[row], #deadlines
  deadlines[n + 1], deadlines[n + 2] = commands.whole(deadline), 'timeout:' .. id
  if earliest < 0 or deadline < earliest then hurried[queue] = true end
end

-- Lists the new roots. A worker must hear of a deadline that became the earliest.
function rooting.flush(now)
  for queue, list in pairs(listed) do
    commands.try_many('ZADD', shard.key('roots', queue), list)
    commands.try('SADD', shard.root .. ':rooted', queue)
  end
  if not deadlines[1] then return end
  commands.call_many('ZADD', shard.root .. ':due', deadlines)
  for queue in pairs(hurried) do waking.wake_queue(queue, now) end
end
