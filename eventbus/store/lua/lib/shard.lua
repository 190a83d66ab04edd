--exports shard
-- The shard: its root, the names of its keys, and the first write of a call.
-- KEYS[1] is the shard's book, `<root>:queues`; every key starts with the root and so carries its hash tag.
-- KEYS[2] never exists. A cluster whose slot moves looks for both: while they are on two nodes it refuses the whole
-- call, so that no script ever finds one half of the shard.
shard = {}
shard.root = string.sub(KEYS[1], 1, -8)

function shard.key(kind, name)
  return shard.root .. ':' .. kind .. ':' .. name
end

shard.job_root = shard.key('job', '') -- records are what is named most

-- The answer where the book says nothing of the shard: it was not opened yet, or somebody emptied the server.
function shard.refuse()
  return redis.error_reply('NOSHARD the book of the shard ' .. shard.root .. ' says nothing of it')
end

-- The first write of calls that a full server must let through: it allows what frees memory, and all behind that.
function shard.begin_writing()
  redis.call('HDEL', KEYS[1], '')
end
