-- Records progress under the lease.
-- The first write is one that a full server allows: a handler that tells how far it is must not fail for it.
-- KEYS: the shard's book, and a key that never exists
-- head: jobs
-- jobs: id token progress
-- answer: ids whose lease is not held by that token any more
--include base guard holds

local count = take()
local notes, lost = {}, {}
for _ = 1, count do
  local id, token, progress = take(), take(), take()
  if read_hold(id, token) then
    notes[#notes + 1] = { key('progress', id), progress }
  else
    lost[#lost + 1] = id
  end
end
begin_writing()
for _, each in ipairs(notes) do redis.call('SET', each[1], each[2]) end
return lost
