--needs base
-- What the book says of the whole shard. Every script that writes looks for it before its first write: where it is
-- missing the shard was not opened yet, or somebody emptied the server, and the caller opens it and asks again.
if not redis.call('HGET', KEYS[1], '*') then return redis.error_reply(CLOSED) end
