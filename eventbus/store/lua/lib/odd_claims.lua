--needs fields journals lines marks plain putting_off records stopping trees
--exports odd_claims
-- Candidates that were no job to claim: damaged ones are set apart, those of a later release parked; stray
-- entries and tombstones are only dropped. What was ready in a tree that stops is cancelled.
odd_claims = {}

-- What is wrong with a candidate; nil for a stray entry. The second value: whether a later release wrote it.
local function judge(id, queue)
  local record, why = records.read(id)
  if record and record.is_later or plain.is_later(id) then return 'of a later release', true end
  if record and record.queue ~= queue then why = 'belongs to queue ' .. record.queue end
  if why then return why end
  if record.state ~= 'waiting' then return not records.is_placed(id, record) and 'waits in the state ' .. record.state or nil end
  return journals.is_lost(id, record) and 'its journal is gone' or 'no body'
end

-- What was ready in a tree that stops, or in one around it whose sweep has not come here yet.
local function cancel_stopped(id, now)
  local record = records.read_lease(id)
  if not record then return end
  local why = '{"type":"JobCancelled","message":"its tree stopped"}'
  if marks.read(record.root) == 'gone' then records.quarantine(record.root, nil, 'its members cannot read it', now) end
  stopping.stop_tree(record.root, 'cancelled', record.root, why, now)
  if (fields.peek(id) or {}).state == 'waiting' then
    stopping.stop_member(id, record.root, marks.read(record.root), now)
    if not record.tree then trees.satisfy(record.root, id, now) end
  end
end

function odd_claims.set_apart(plan, now)
  for _, each in ipairs(plan.odd) do
    local why, is_later = judge(each.id, each.queue)
    if is_later then
      putting_off.park_later(each.id, each.queue, now)
    elseif why then
      records.quarantine(each.id, each.queue, why, now)
    end
  end
  for _, line in ipairs(plan.lines) do lines.drop_dead(line.queue, line.dropped) end
  for _, id in ipairs(plan.stopped) do cancel_stopped(id, now) end
end
