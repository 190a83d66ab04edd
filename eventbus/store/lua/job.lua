-- Looks at one job: all that is recorded of it. Writes nothing.
-- KEYS: the shard's book, and a key that never exists
-- head: id
-- answer: the record's fields as name, value pairs (none: unknown), body, result or error, progress,
--   the log's entries, when its lease ends (ms, or '')
--include base holds

local id = take()
local fields = try('HGETALL', job_root .. id) or {}
local known = {}
for i = 1, #fields, 2 do known[fields[i]] = fields[i + 1] end

-- A small text stands in the record, a larger one by its side.
local function text_of(kind, id, own)
  if own and own ~= '' then return own end
  return try('GET', key(kind, id)) or ''
end

local lease_end = ''
if known.state == 'waiting' and known.queue and not try('ZSCORE', key('ready', known.queue), id) then
  local hold = find_hold(id)
  if hold then
    local token = token_of(hold)
    for field, value in pairs({ state = 'active', token = token, claimed = whole(time_of(hold)) }) do
      fields[#fields + 1], fields[#fields + 2] = field, value
    end
    lease_end = try('ZSCORE', root .. ':workers', worker_of(token)) or ''
  end
end

local body = text_of('body', id, known.body)
if body == '' and known.root then body = text_of('body', known.root, try('HGET', job_root .. known.root, 'body')) end
return {
  fields, body, text_of('result', id, known.result), try('GET', key('progress', id)) or '',
  try('LRANGE', key('log', id), 0, -1) or {}, lease_end,
}
