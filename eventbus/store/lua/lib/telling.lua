--needs shard commands cells chore_list endings fields marks placing records retention stopping trees waking
--exports telling
-- Telling those who need a member that it ended, at once or by a chore.
telling = {}
local to_tell = bounds.CALL_ROWS -- dependents that one call tells; the rest is a chore
local untold = {} -- members that left some to a chore

-- The text of what ended without completing, as its dependents and waiters hear it.
local function describe_failure(id, state)
  local text = 'child ' .. id .. ' ' .. (state == 'failed' and 'failed' or 'was cancelled')
  local own = fields.text_of(id, fields.peek(id))
  local is_json, error = pcall(cjson.decode, own)
  if is_json and type(error) == 'table' and error.message then text = text .. ': ' .. tostring(error.message) end
  return cjson.encode({ type = 'ChildFailed', message = text })
end

-- What becomes of a dependent that waits for a member which did not complete, by policy.
local POLICIES = {}
function POLICIES.ignore(dependent, _, member, now) trees.satisfy(dependent, member.id, now) end
function POLICIES.wake(dependent, _, _, now)
  redis.call('DEL', shard.key('needs', dependent))
  trees.release(dependent, now)
end
function POLICIES.fail(dependent, record, member, now, state)
  redis.call('DEL', shard.key('needs', dependent))
  endings.write(dependent, record, state or 'failed', describe_failure(member.id, member.state), now, trees.KEY_TTL)
end

function POLICIES.remove(dependent, record, member, now)
  POLICIES.fail(dependent, record, member, now, 'cancelled')
  trees.removed[#trees.removed + 1] = dependent
end

-- Whether the member's failure stops the tree of its dependent: it always does where the dependent is the root.
local function stops_tree(record, policy)
  return policy ~= 'ignore' and (record.tree or policy == 'fail' and (fields.fetch(record.root) or {}).on == 'wake')
end

-- One dependent of a member that did not complete: its own policy decides, or the member's for it. One that runs
-- meanwhile is noted as `broken`, and hears of it when it waits.
function telling.tell_failure(dependent, member, now)
  local record = fields.fetch(dependent)
  if not record then return trees.satisfy(dependent, member.id, now) end
  if not trees.OPEN[record.state] then return end
  local found = commands.try('SMISMEMBER', shard.key('needs', dependent), member.id, trees.ANY .. member.id)
  if not found or trees.waits_for_nothing(dependent) then return trees.break_tree(dependent, member.id, 'needs', dependent, now) end
  if found[1] + found[2] == 0 then return end -- an earlier run's, or of a wait that is over
  if not (record.tree or record.root) then return records.quarantine(dependent, record.queue, 'it waited in a tree', now) end
  local policy = member.up or record.on or 'fail'
  if stops_tree(record, policy) then
    local top = record.tree and dependent or record.root
    if record.tree and (member.up == 'remove' or member.up == 'wake') then fields.change(top, 'on', member.up) end
    return stopping.stop_tree(top, 'failed', member.id, describe_failure(member.id, member.state), now)
  end
  if policy ~= 'ignore' and record.state ~= 'waiting-children' then return fields.change(dependent, 'broken', member.id) end
  return (POLICIES[policy] or POLICIES.fail)(dependent, record, member, now)
end

-- A job that begins to wait hears of a child that failed while it ran. Returns whether there was one.
function telling.recall_failure(id, now)
  local child = (fields.fetch(id) or {}).broken
  if not child then return false end
  local record = records.read_lease(child) or { state = 'failed' }
  fields.clear(id, 'broken')
  telling.tell_failure(id, { id = child, state = record.state, up = record.up }, now)
  return true
end

local function tell_one(each, now)
  if each.is_unlisted then trees.break_tree(each.root, each.id, 'done', each.root, now) end
  if marks.read(each.root) ~= '' then return trees.satisfy(each.root, each.id, now) end
  local feeds, first = shard.key('feeds', each.id), each.told or 0
  local dependents = to_tell > 0 and commands.try('LRANGE', feeds, first, first + to_tell - 1)
  if to_tell <= 0 then dependents = commands.try('LLEN', feeds) and {} end
  if not dependents then return trees.break_tree(each.root, each.id, 'feeds', each.id, now) end
  for _, dependent in ipairs(dependents) do
    if each.state == 'completed' then
      trees.satisfy(dependent, each.id, now)
    else
      telling.tell_failure(dependent, each, now)
    end
  end
  to_tell = to_tell - #dependents
  if to_tell <= 0 and (commands.try('LLEN', feeds) or 0) > first + #dependents then
    fields.change(each.id, 'told', first + #dependents)
    untold[each.id] = true
    chore_list.add('tell', each.id)
  end
end

-- Tells all, also those that end by it; what goes on is put into `ready`.
function telling.flush(ready, now)
  local i = 1
  while endings.of_members[i] do
    tell_one(endings.of_members[i], now)
    i = i + 1
  end
  placing.requeue(trees.released, ready)
  for _, id in ipairs(trees.removed) do
    if not untold[id] then -- else it is kept with its tree
      retention.forget({ id })
      retention.forget_ties(id)
    end
  end
  trees.released, endings.of_members, trees.removed = {}, {}, {}
  cells.flush(now)
end

-- For calls that are no turn: wakes a worker of each root's queue, to go on with what is left; others look each 4 seconds.
function telling.wake_chores(now)
  if not chore_list.has_any then return end
  for tree in pairs(marks.causes) do
    local record = fields.peek(tree)
    if record then waking.wake_queue(record.queue, now) end
  end
end
