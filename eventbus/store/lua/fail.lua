-- Stops the tree of a root that runs, because the root itself has failed: nothing of the tree starts any more, and what
-- runs may end its attempt. The root goes on until it settles; it is claimed again then, to undo.
-- Repeat-safe: the first stop of a tree stays. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now id token text
--   text: the error
-- answer: ok | stopping (it was stopped before) | lost (the lease)
--include shard args guard fields hold holds records stopping epilogue marks

local now = args.take_now()
local id, token, text = args.take(), args.take(), args.take()
local record = records.read_lease(id)
if not record or not record.tree or not holds.read(id, token) then return 'lost' end
if record.stop then return 'stopping' end

shard.begin_writing()
stopping.stop_tree(id, 'failed', id, text, now, true)
epilogue.end_call({}, now)
return 'ok'
