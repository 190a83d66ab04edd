--needs changes
--exports book
-- The book: one hash for the shard, which says in one command what is unusual about each queue of a call. The field
-- `*` is about the whole shard. The field of a queue has its flags, one byte:
--   1 PAUSED     nothing is claimed (`pause.lua`)
--   2 LIMITED    it has a limit (`slots.lua`)
--   4 BY_KEY     it may have jobs with limit keys (`lanes.lua`)
--   8 PLUS       it may have jobs of other priorities than 0 (`ready+`)
--   16 SUSPECTS  it may have suspects (`suspects`)
--   32 SHELVED   jobs of it may stand on shelves (`shelves.lua`)
--   64 KEEPS     a program declares how long its finished jobs are kept (`orders.lua`); no claim looks at this
-- What must hold: a flag is set by the call that writes what it tells of, and cleared by a claim that finds nothing, or
-- by the call that takes back what somebody ordered; SHELVED by an announcement. A queue without flags has no field.
book = { PAUSED = 1, LIMITED = 2, BY_KEY = 4, PLUS = 8, SUSPECTS = 16, SHELVED = 32, KEEPS = 64 }
book.changed = {} -- queue -> the flags that this call gave it

-- The flags of queues; nil where the book says nothing of the shard: then it was not opened yet, or somebody emptied
-- the server, and the caller opens it and asks again.
function book.read(names)
  local entries = redis.call('HMGET', KEYS[1], '*', unpack(names))
  if not entries[1] then return nil end
  changes.open(entries[1])
  local flags = {}
  for i = 1, #names do flags[i] = entries[i + 1] and string.byte(entries[i + 1]) or 0 end
  return flags
end

function book.set(queue, flag)
  local flags = string.byte(redis.call('HGET', KEYS[1], queue) or '') or 0
  local all = bit.bor(flags, flag)
  if all == flags then return end
  redis.call('HSET', KEYS[1], queue, string.char(all))
  book.changed[queue] = all
end

function book.clear(queue, flag)
  local flags = bit.band(string.byte(redis.call('HGET', KEYS[1], queue) or '') or 0, 255 - flag)
  if flags > 0 then redis.call('HSET', KEYS[1], queue, string.char(flags)) else redis.call('HDEL', KEYS[1], queue) end
end
