--needs shard
--exports chore_list
-- What is left of work that was too much for one call: any worker's turn goes on with it (`chores.lua`).
chore_list = {}
chore_list.has_any = false -- whether this call left any

-- A chore is due at once, whatever the server's clock does meanwhile: its place in the order of all is a
-- number that only rises, and is long past as a time.
function chore_list.add(kind, id)
  redis.call('ZADD', shard.root .. ':due', redis.call('INCRBY', shard.root .. ':order', 1), kind .. ':' .. id)
  chore_list.has_any = true
end
