--needs shard changes
-- What the book says of the whole shard. Every script that writes looks for it before its first write: where it is
-- missing the shard was not opened yet, or somebody emptied the server, and the caller opens it and asks again.
local header = redis.call('HGET', KEYS[1], '*')
if not header then return shard.refuse() end
local is_watched = changes.open(header) -- by anybody
