--needs shard commands cells changes fields marks stopping
--exports verdict
-- What a settle comes to: in a tree, and for a job that was cancelled.
verdict = {}

-- What an activation that knows of the stop may ask for, though it did not acknowledge it yet.
local ON_HOLD = { waiting = true, delayed = true, parked = true, shelved = true, suspended = true }

-- A member that was cancelled by itself ends so, whatever it did meanwhile; what that was is kept in its
-- outcome, so that it can be undone.
local function decide_called_off(row, record)
  if not record.root then return 'cancelled' end
  if row.state == 'completed' then
    local text = commands.try('GET', shard.key('result', row.id)) or ''
    if #text > 2 then redis.call('SET', shard.key('result', row.id), string.sub(text, 1, -2) .. ',"kept":' .. cjson.encode(row.text) .. '}') end
  elseif row.state == 'waiting' then
    fields.change(row.id, 'stalls', 1) -- given back unfinished: nobody knows what it did
  end
  return 'cancelled'
end

local function decide(row, record, now)
  local state = row.state
  if record.cancel and record.cancel ~= record.root then return decide_called_off(row, record) end
  if record.tree and (marks.causes[row.id] or '') ~= '' then record.stop = marks.causes[row.id] end -- since it was read
  if record.tree and not record.acked then
    local is_end = state == 'failed' or state == 'cancelled'
    if not record.stop and is_end and record.on == 'wake' and not record.cancel then
      stopping.stop_tree(row.id, 'failed', row.id, row.text, now)
      record.stop = 'failed'
    end
    if record.stop then
      if record.knows and ON_HOLD[state] then return state end
      stopping.settle_root(row.id, now)
      return nil
    end
  elseif record.tree and record.stop == 'cancelled' then -- acknowledged; and who cancelled it was told so
    return ON_HOLD[state] and state or 'cancelled'
  elseif record.root and not record.tree and marks.read(record.root) ~= '' then
    if state == 'completed' then return state end
    if state == 'delayed' and row.text ~= '' then return 'failed' end -- this attempt was its last
    if state == 'waiting' then
      row.text = '{"type":"StalledError","message":"given back unfinished while its tree stopped","stalls":1}'
      return 'failed'
    end
    if not ON_HOLD[state] then return state end
    row.text = '{"type":"JobCancelled","message":"its tree stopped"}'
    return 'cancelled'
  end
  return state
end

-- What a settle comes to in a tree: a stopped one gives no further attempt, and a root that may undo
-- what its members did fails only when it has. Returns the state, nil where the root goes on itself.
-- The worker counts what it said, so what is not true of that is taken back.
function verdict.decide(row, record, now)
  local said, state = row.state, decide(row, record, now)
  if state ~= said then
    cells.note(record.queue, said, -1)
    if state then cells.note(record.queue, state) end
  end
  return state
end

local SETTLES = { waiting = 'returned', shelved = 'returned', parked = 'parked', suspended = 'suspended' }

-- Tells who watches what a settle comes to that is no end; `fields.lua` tells of ends. A retry has counted an attempt.
function verdict.note(row, record, worker, now)
  local what, due = SETTLES[row.state], row.state == 'suspended' and row.delay >= 0 or row.state == 'delayed' and row.delay > 0
  local counted = row.state == 'delayed' and tonumber(row.attempts) or 0
  if row.state == 'delayed' then what = counted > (tonumber(record.attempts) or 0) and 'retried' or 'delayed' end
  if not what then return end
  local state = due and 'delayed' or what == 'suspended' and 'waiting-children' or what == 'parked' and 'parked' or 'waiting'
  local more = { worker = worker, due = due and now + row.delay, attempt = what == 'retried' and counted }
  more.text = (row.state == 'delayed' or what == 'parked') and row.text
  changes.note(what, record.queue, row.id, state, more)
  if row.goes_on then changes.note('released', record.queue, row.id, 'waiting') end -- it was sent a signal meanwhile
end
