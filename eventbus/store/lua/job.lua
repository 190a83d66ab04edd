-- Looks at one job: all that is recorded of it. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: id
-- answer: the fields as name, value pairs (none: unknown), body, result or error, progress,
--   the log's entries, when its lease ends (ms, or ''), lines that it keeps
--include base fields hold holds

local id = take()
local _, why, _, known = fetch(id)
if why == 'missing' then known = {} end

local lease_end = ''
known.claimed = claimed_of(known)
local hold = known.state == 'waiting' and find_hold(id)
if hold then
  known.state, known.token, known.claimed = 'active', Hold.token(hold), Hold.time(hold)
  lease_end = try('ZSCORE', root .. ':workers', Hold.worker_of(known.token)) or ''
end

local text = text_of(id, known)
local body = known.size and try('GET', key('body', id)) or known.body or ''
if body == '' and known.root then body = (peek(known.root) or {}).body or '' end
if body == '' and known.root then body = try('GET', key('body', known.root)) or '' end
local fields = {}
for name, value in pairs(known) do
  if value and name ~= 'body' and name ~= 'result' and name ~= 'flags' and name ~= 'size' and name ~= 'is_root' then
    fields[#fields + 1], fields[#fields + 2] = name, type(value) == 'number' and whole(value) or tostring(value)
  end
end
return {
  fields, body, text, try('GET', key('progress', id)) or '', try('LRANGE', key('log', id), 0, -1) or {}, lease_end,
  try('LRANGE', key('lines', id), 0, -1) or {},
}
