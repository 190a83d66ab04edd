--needs shard commands candidate codec entry fields flag journals lines marks plain records
--exports unusual
-- A candidate that is not plain: a member or a root of a tree, one that was tried before, or none at all. Writes nothing.
unusual = {}

-- A member without a body of its own is told what its root was given, read once for all of them.
function unusual.read_body(id, record)
  if record.size then return commands.try('GET', shard.key('body', id)) or nil end
  if record.body ~= '' or not record.root then return record.body ~= '' and record.body or nil end
  marks.read(record.root)
  marks.bodies[record.root] = marks.bodies[record.root] or commands.try('GET', shard.key('body', record.root)) or nil
  return marks.bodies[record.root]
end

-- Whether there are tombstones of a queue that this call has not met yet.
local function has_dead(line)
  line.dead = line.dead or lines.count_dead(line.queue)
  return line.dropped < line.dead
end

local function drop(plan, line)
  line.dropped, plan.is_unusual = line.dropped + 1, true
  return 0
end

-- Adds the journal and the inbox of a claim to the list, if it has them; returns their size.
function unusual.tell_journal(list, id, record)
  if not record.inbox and bit.band(record.flags, FLAG.JOURNAL) == 0 then return 0 end
  local size
  list[#list + 1], size = journals.read(id)
  return size
end

-- Reads one candidate into `plan`; returns its size in bytes, nil where its line does not admit it (`suspects.lua`). An entry that its record does not explain is odd, unless
-- somebody said that there are tombstones.
function unusual.choose(plan, line, i)
  local id, entry, text = line.ids[i], line.entries[i], line.records[i] or nil
  if entry and text and plain.has_ended(text) and has_dead(line) then return drop(plan, line) end -- mostly
  local record, why = records.read(id, text)
  local is_other = record and entry and entry ~= Entry.of(id, record) -- it was taken out, and waits by another entry
  if is_other or entry and why == 'missing' and has_dead(line) then return drop(plan, line) end
  local is_sound = record and record.state == 'waiting' and record.queue == line.queue and not record.is_later
  if is_sound and record.root and marks.find(record.root) ~= '' and not record.stop then
    plan.stopped[#plan.stopped + 1], plan.is_unusual, lines.unlisted[id] = id, true, 'nowhere'
    return 0
  end
  local body = is_sound and unusual.read_body(id, record)
  if not body or journals.is_lost(id, record) then
    plan.odd[#plan.odd + 1], plan.is_unusual = { id = id, queue = line.queue }, true
    return 0
  end
  if line.admit and not line.admit(id, record) then return nil end
  candidate.add_claim(plan.rows, id, line.index, body, record.created, tonumber(record.attempts), record.stalls, record.due, record.stop, record.began)
  plan.ids[#plan.ids + 1] = id
  plan.lanes[id] = record.limit -- of a suspect, which is in no lane
  if record.root or record.tree or record.waited or record.listens or record.gathers then plan.named[id] = record end
  return #body + unusual.tell_journal(plan.journals, id, record)
end

-- A root that stops is claimed knowing it. Of a brief one no record is written.
function unusual.name_holder(id, record, token, now)
  if record.stop then redis.call('HSET', shard.key('more', id), 'knows', now) end
  if record.root or record.tree and not record.is_root then
    record.token, record.claimed = token, now
    redis.call('SET', shard.job_root .. id, codec.encode(record)) -- as it was read in this call
  end
  if record.gathers then redis.call('DEL', shard.key('needs', id)) end
  if record.waited or record.listens or record.gathers then fields.clear(id, 'waited', 'listens', 'wakes', 'gathers') end -- last: it may change the record
end
