-- Appends to the audit: who did what, or was refused. It has the newest 10,000 entries, of the last 90 days.
-- An action is noted before it is done, and its outcome replaces that entry in this one call. So what stands there without an
-- outcome was cut off, and may have been done.
-- Repeat-safe where it replaces: what is replaced already adds nothing. Else an entry may stand twice after a lost answer.
-- A full server lets it through, because what frees the server is audited too. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now replaced fields
--   replaced: the id of the entry that this one replaces, or '' | fields: name, value ...
-- answer: the entry's id, '' if it was replaced before
--include shard args commands guard

local MOST, KEPT = 10000, 7776000000 -- 90 days, ms
local now = args.take_now()
local replaced, fields = args.take(), args.take()
local stream = shard.root .. ':audit'
shard.begin_writing()
if replaced ~= '' and redis.call('XDEL', stream, replaced) == 0 then return '' end
local id = redis.call('XADD', stream, 'MAXLEN', '~', MOST, '*', unpack(fields))
redis.call('XTRIM', stream, 'MINID', '~', commands.whole(now - KEPT))
redis.call('PEXPIRE', stream, KEPT)
return id
