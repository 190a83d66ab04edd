--needs shard endings fields hold holds marks records stopping trees
--exports cancelling
-- Cancelling: a job that nobody runs ends at once; a running one is marked, and its worker told.
--
-- What must hold: the answer and the outcome agree. `ended` and `asked` are said of a job that ends as
-- cancelled, whatever else happens to it; `over` of one whose end this call has not made.
-- - Whoever settles or rescues a marked job ends it as cancelled, whatever it says: so the race with its
--   completion is decided by which of two state changes comes first.
-- - A root is marked with its whole tree, and the first mark decides the outcome. A later cancel still hurries
--   a gentle stop, and is `over`.
-- - A member that runs is marked by itself (`cancel` names the call), or with its tree (`cancel` names the
--   root). The first ends as cancelled, and what it did all the same is kept in its outcome, for it must be
--   undone; the second may complete, and is undone. The first of the two marks stays.
-- - The mark names the call, so one that is sent again after a lost answer is answered the same,
--   whoever else asked in between. Who begins the next run of the job keeps the name (`stopped`): a call that ended the
--   last run is not for this one.
-- Crash windows: `cancel-then-retried` (the answer is lost, and the job runs again when the call is sent once more: as above).
cancelling = {}

-- A running job. In a tree that stops it is only hurried: its own outcome is what it makes of that.
local function cancel_active(id, record, call, text, now)
  local is_own = record.cancel and record.cancel ~= record.root
  local is_hurried = not is_own and record.root and marks.read(record.root) ~= ''
  if is_hurried then
    fields.change(id, 'cancel', record.root)
  elseif not is_own then
    fields.change(id, 'cancel', call)
    fields.note_result(id, text)
  end
  holds.ask_holder(id, record.token, now)
  return is_hurried and 'over' or 'asked'
end

-- `call` names who asks, `text` is the outcome that waiters hear; the first one wins. `of`: the only state in which it is
-- cancelled, unless it is a tree, or '' or nil. Returns what became of the job: ended (by this very call) | asked (it runs, and its
-- worker was told; or its tree stops) | over (it had ended, or its tree was stopping) | other (it is open in another state than
-- `of`) | unknown (no record).
function cancelling.cancel(id, call, text, now, key_ttl, of)
  local record = records.read_lease(id)
  if not record then return 'unknown' end
  if record.stopped == call then return record.tree and 'asked' or 'ended' end
  if record.root and trees.OPEN[record.state] and (fields.fetch(record.root) or {}).pending then
    fields.change(id, 'cancel', call)
    stopping.stop_tree(record.root, 'failed', id, text, now) -- it is not whole yet, and nobody may begin it
    return record.tree and 'asked' or 'ended'
  end
  if record.tree and trees.OPEN[record.state] then
    if stopping.stop_tree(id, 'cancelled', call, text, now) then return 'asked' end
    return record.stopper == call and 'asked' or 'over'
  end
  if record.state == 'waiting' and not record.token then
    local hold = holds.find(id)
    if hold then record.state, record.token = 'active', Hold.token(hold) end
  end
  if of and of ~= '' and trees.OPEN[record.state] and record.state ~= of then return 'other' end
  if record.state == 'active' then return cancel_active(id, record, call, text, now) end
  if not trees.OPEN[record.state] then -- ended; a repeat whose first answer was lost hears that answer again
    return (record.cancel == call or record.stopper == call) and 'ended' or 'over'
  end
  stopping.take_out(id, record)
  redis.call('DEL', shard.key('needs', id))
  fields.change(id, 'cancel', call)
  endings.write(id, record, 'cancelled', text, now, key_ttl)
  return 'ended'
end
