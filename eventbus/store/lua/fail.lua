-- Stops the tree of a root that runs, because the root itself has failed: nothing of the tree starts any more, and what
-- runs may end its attempt. The root goes on until it settles; it is claimed again then, to undo.
-- Repeat-safe: the first stop of a tree stays. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now id token text
--   text: the error
-- answer: ok | stopping (it was stopped before) | lost (the lease)
--include base guard fields hold holds record stopping epilogue marks

local now = read_now(take())
local id, token, text = take(), take(), take()
local record = read_lease(id)
if not record or not record.tree or not read_hold(id, token) then return 'lost' end
if record.stop then return 'stopping' end

begin_writing()
stop_tree(id, 'failed', id, text, now, true)
end_call({}, now)
return 'ok'
