-- Looks at a tree: its root, what was saved there, and a page of its members. Writes nothing.
-- KEYS: the shard's book, and a key that never exists
-- head: id list first limit bytes
--   list: members (in the order they were added) | done (those that completed, in that order)
--   bytes: of the outcomes on one page; it ends with the one that reaches them; 0: no outcomes, no bound
-- answer: the root's fields as name, value pairs (none: unknown), what was saved as name, value pairs,
--   with `damaged` among the fields where somebody else's value is in the place of one of the two lists,
--   how many there are, members: id state queue attempts stalls created claimed ended text needs
--   needs: the jobs that need it, joined by spaces
--include base holds

local id, list, first, limit, bytes = take(), take(), take(), take(), take()
local FIELDS = {
  'state', 'queue', 'attempts', 'stalls', 'created', 'claimed', 'ended', 'due',
  'root', 'pending', 'stop', 'stopper', 'acked', 'on', 'why', 'key', 'run', 'token',
}
-- `active` for a job whose holder still has it.
local function state_of(job, state, token)
  return state == 'waiting' and token and read_hold(job, token) and 'active' or state
end

local values = try('HMGET', job_root .. id, unpack(FIELDS)) or {}
values[1] = state_of(id, values[1], values[18])
local fields = {}
for i, name in ipairs(FIELDS) do
  if values[i] then
    fields[#fields + 1], fields[#fields + 2] = name, values[i]
  end
end
if values[1] then
  fields[#fields + 1], fields[#fields + 2] = 'text', try('HGET', job_root .. id, 'result') or try('GET', key('result', id)) or ''
  local body = try('HGET', job_root .. id, 'body')
  if not body or body == '' then body = try('GET', key('body', id)) or '' end
  fields[#fields + 1], fields[#fields + 2] = 'body', body
  fields[#fields + 1], fields[#fields + 2] = 'now', whole(read_now(''))
  if not (try('LLEN', key('members', id)) and try('LLEN', key('done', id))) then
    fields[#fields + 1], fields[#fields + 2] = 'damaged', '1'
  end
end

local rows, name = {}, key(list, id)
local has_texts, left = bytes > 0, bytes
for _, member in ipairs(limit > 0 and try('LRANGE', name, first, first + limit - 1) or {}) do
  if has_texts and left <= 0 then break end
  local v = try('HMGET', job_root .. member, 'state', 'queue', 'attempts', 'stalls', 'created', 'claimed', 'ended', 'result', 'token') or {}
  local text = ''
  if has_texts and v[7] then
    text = v[8] or try('GET', key('result', member)) or ''
    left = left - #text
  end
  local row = { member, state_of(member, v[1], v[9]) or 'unknown', v[2] or '', v[3] or '0', v[4] or '0', v[5] or '0', v[6] or '0', v[7] or '0', text }
  row[10] = list == 'members' and table.concat(try('LRANGE', key('feeds', member), 0, 999) or {}, ' ') or ''
  for _, value in ipairs(row) do rows[#rows + 1] = value end
end
return { fields, try('HGETALL', key('checkpoints', id)) or {}, try('LLEN', name) or 0, rows }
