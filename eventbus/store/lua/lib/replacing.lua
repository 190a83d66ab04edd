--needs shard commands codec delays fields lines next_due passed placing putting_off waking
--exports replacing
-- A job that nobody has begun gets the body of a later emission of its key, and what belongs to it: the due time of a
-- debounced one, and the limit key (`merging.lua`).
replacing = {}

-- A debounced job waits from its last row on, but no longer than `span` from its first.
local function change_due(id, record, row, now)
  local due, earliest = row.due, next_due.read()
  if row.span ~= '' then due = math.max(now, math.min(due, record.created + row.span)) end
  fields.change(id, 'due', commands.whole(due))
  if record.after then fields.change(id, 'ripe', commands.whole(due)) end
  delays.place({ [record.queue] = { due, id } }, now, function() end)
  if earliest < 0 or due < earliest then waking.wake_queue(record.queue, now) end
end

-- A waiting job whose limit key is another one now goes to the end of that lane.
local function change_lane(id, limit, now)
  local record, ready = fields.fetch(id), {}
  if record.state == 'waiting' and lines.leave(id, record) then
    record.entry = (tonumber(record.entry) or 0) + 1
    fields.change(id, 'entry', record.entry)
  end
  fields.change(id, 'limit', limit)
  if record.state ~= 'waiting' then return end
  record.id, record.limit = id, limit
  placing.line_up(ready, record.queue, record)
  placing.flush(ready, now, putting_off.put_off)
end

-- choice: of a row that joins the job `join`, which was `replaced` before.
function replacing.change_body(choice, row, now)
  local id, record = choice.join, fields.peek(choice.join)
  fields.keep_body(record, id, row.body)
  redis.call('SET', shard.job_root .. id, codec.encode(record))
  fields.change(id, 'edited', row.id) -- so that whoever edits it hears that the body is another one
  if row.limit and row.limit ~= record.limit then change_lane(id, row.limit, now) end
  if choice.replaced.size and not record.size then redis.call('DEL', shard.key('body', id)) end
  if row.due and record.state == 'delayed' then change_due(id, choice.replaced, row, now) end
  local print = choice.replaced.after and 'nextprint' or 'print'
  redis.call('HSET', choice.pointer, print, row.print, 'seen', passed.add(choice.seen, row.id))
end
