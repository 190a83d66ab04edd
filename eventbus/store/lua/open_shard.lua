-- Opens a shard: writes what its book says of the whole. Repeat-safe: a shard that is open stays as it is.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: edition first
--   first: the root of the keys of the first edition, which are left alone
-- answer: whether there are keys of the first edition
--include shard args commands book orders

local edition, first = args.take(), args.take()
redis.call('HDEL', KEYS[1], '')
if not redis.call('HGET', KEYS[1], '*') then
  -- edition, flags, offset of the shard's time, watched until, shards, epoch, digest of a build
  redis.call('HSET', KEYS[1], '*', struct.pack('>BBi6I6I2I2', edition, 0, 0, 0, 1, 0) .. string.rep('\0', 8))
  for _, queue in ipairs(commands.try('SMEMBERS', shard.root .. ':limited') or {}) do orders.note(queue, args.read_now('')) end
end
return redis.call('EXISTS', first .. ':order')
