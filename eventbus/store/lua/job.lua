-- Looks at one job: all that is recorded of it. Writes nothing.
-- KEYS: the shard's book, and a key that never exists
-- head: id
-- answer: the record's fields as name, value pairs (none: unknown), body, result or error, progress,
--   the log's entries, when its lease ends (ms, or '')
--include base

local id = take()
local fields = try('HGETALL', job_root .. id) or {}
local known = {}
for i = 1, #fields, 2 do known[fields[i]] = fields[i + 1] end

-- A small text stands in the record, a larger one by its side.
local function text_of(kind, id, own)
  if own and own ~= '' then return own end
  return try('GET', key(kind, id)) or ''
end

local body = text_of('body', id, known.body)
if body == '' and known.root then body = text_of('body', known.root, try('HGET', job_root .. known.root, 'body')) end
return {
  fields, body, text_of('result', id, known.result), try('GET', key('progress', id)) or '',
  try('LRANGE', key('log', id), 0, -1) or {}, try('ZSCORE', root .. ':active', id) or '',
}
