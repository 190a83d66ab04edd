--needs base
--exports KEPT INLINE ends reply flush_ends
-- What ended in this call: it is listed, and its emitters are told, by the last writes of the call.
KEPT = 604800000 -- a week
INLINE = 8192 -- larger outcomes are announced to emitters, not carried
ends = {} -- state .. ':' .. queue -> flat list of time, job
local replies = {} -- emitter -> flat list of job, state, carried, text

function reply(emitter, id, state, text)
  local rows, is_carried = replies[emitter], #text <= INLINE
  if not rows then
    rows = {}
    replies[emitter] = rows
  end
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, state, is_carried and 1 or 0, is_carried and text or ''
end

-- What cannot be listed, because somebody else's value stands in the place of the set, goes by itself after a week.
local function expire_unlisted(list)
  for i = 2, #list, 2 do
    for _, kind in ipairs({ 'job', 'more', 'body', 'result' }) do redis.call('PEXPIRE', key(kind, list[i]), KEPT) end
  end
end

-- The last write of a call: finished sets, and one stream entry for each emitter.
-- NOMKSTREAM: the stream of an emitter that is gone does not come back.
function flush_ends()
  for name, list in pairs(ends) do
    if not try_many('ZADD', root .. ':' .. name, list) then expire_unlisted(list) end
  end
  for emitter, rows in pairs(replies) do
    try('XADD', key('replies', emitter), 'NOMKSTREAM', '*', 'd', cmsgpack.pack(rows))
  end
end
