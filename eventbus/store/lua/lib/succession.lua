--needs shard commands tables delays fields putting_off trees
--exports succession
-- The next job of a key, `next` of its pointer: it is delayed until the job that it comes `after` has ended, and until
-- it is `ripe`, whichever is later (`merging.lua`).
-- What must hold: it never begins while its predecessor is open. The call that ends the predecessor lets it go on; one
-- that nobody did that for, because the record of the other was lost, finds out itself, within PUT_OFF.
succession = {}
succession.PUT_OFF = 60000 -- ms

-- The key stands for the next job from now on.
local function take_over(pointer, id, print)
  redis.call('HSET', pointer, 'job', id, 'print', print or '')
  redis.call('HDEL', pointer, 'next', 'nextprint')
  fields.clear(id, 'after', 'ripe')
end

-- The job `id`, for which `pointer` stands, ends. Returns whether the key's next job takes its place.
function succession.begin(pointer, id, next_id, print, now)
  local record = fields.fetch(next_id)
  if not record or record.ended or record.after ~= id then
    redis.call('HDEL', pointer, 'next', 'nextprint')
    return false
  end
  take_over(pointer, next_id, print)
  if record.state ~= 'delayed' then return true end -- somebody made it go on by hand
  if (tonumber(record.ripe) or 0) > now then return true end -- it is delayed until then
  commands.try('ZREM', shard.key('delayed', record.queue), next_id)
  delays.forget(record.queue)
  fields.change(next_id, 'due', commands.whole(now))
  record.id = next_id
  tables.push(trees.released, record.queue, record)
  return true
end

-- A next job whose time has come. Returns whether it has to wait on.
function succession.has_to_wait(id, record, now)
  local before = fields.peek(record.after)
  if before and not before.ended then return true end
  local pointer = shard.key('key', record.queue .. ':' .. (record.key or ''))
  local known = commands.try('HMGET', pointer, 'next', 'nextprint') or {}
  if known[1] == id then take_over(pointer, id, known[2]) else fields.clear(id, 'after', 'ripe') end
  return false
end

function succession.put_off(id, queue, now)
  fields.change(id, 'due', commands.whole(now + succession.PUT_OFF))
  delays.place({ [queue] = { now + succession.PUT_OFF, id } }, now, putting_off.set_apart)
end
