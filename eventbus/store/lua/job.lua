-- Looks at one job: all that is recorded of it. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: id
-- answer: the fields as name, value pairs (none: unknown), body, result or error, progress,
--   the log's entries, when its lease ends (ms, or ''), lines that it keeps
--include shard args commands fields hold holds

local id = args.take()
local _, why, _, known = fields.fetch(id)
if why == 'missing' then known = {} end

local lease_end = ''
known.claimed = fields.claimed_of(known)
local hold = known.state == 'waiting' and holds.find(id)
if hold then
  known.state, known.token, known.claimed = 'active', Hold.token(hold), Hold.time(hold)
  lease_end = commands.try('ZSCORE', shard.root .. ':workers', Hold.worker_of(known.token)) or ''
end

local text = fields.text_of(id, known)
local body = known.size and commands.try('GET', shard.key('body', id)) or known.body or ''
if body == '' and known.root then body = (fields.peek(known.root) or {}).body or '' end
if body == '' and known.root then body = commands.try('GET', shard.key('body', known.root)) or '' end
local values = {}
for name, value in pairs(known) do
  if value and name ~= 'body' and name ~= 'result' and name ~= 'flags' and name ~= 'size' and name ~= 'is_root' then
    values[#values + 1], values[#values + 2] = name, type(value) == 'number' and commands.whole(value) or tostring(value)
  end
end
return {
  values, body, text, commands.try('GET', shard.key('progress', id)) or '', commands.try('LRANGE', shard.key('log', id), 0, -1) or {}, lease_end,
  commands.try('LRANGE', shard.key('lines', id), 0, -1) or {},
}
