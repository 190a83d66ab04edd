-- Renews the leases of one worker, and notes that the server was heard.
-- The first write is one that a full server allows.
-- KEYS: the shard's root
-- head: now lease jobs
-- jobs: id token
-- answer: ids whose lease is not held by that token any more
--include base
--include heard

local now = read_now(take())
local lease, count = take(), take()
local held, lost = {}, {}
for _ = 1, count do
  local id, token = take(), take()
  local values = redis.pcall('HMGET', key('job', id), 'token', 'state')
  if values[1] == token and values[2] == 'active' then
    held[#held + 1] = now + lease
    held[#held + 1] = id
  else
    lost[#lost + 1] = id
  end
end
redis.call('ZREM', root .. ':active', '')
note_heard(now, lease)
call_many('ZADD', root .. ':active', held)
return lost
