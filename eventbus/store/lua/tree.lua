-- Looks at a tree: its root, what was saved there, and a page of its members. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: id list first limit bytes
--   list: members (in the order they were added) | done (those that completed, in that order)
--   bytes: of the outcomes on one page; it ends with the one that reaches them; 0: no outcomes, no bound
-- answer: the root's fields as name, value pairs (none: unknown), what was saved as name, value pairs,
--   with `damaged` among the fields where somebody else's value is in the place of one of the two lists,
--   how many there are, members: id state queue attempts stalls created claimed ended text needs
--   needs: the jobs that need it, joined by spaces
--include shard args commands tables fields flag hold holds

local id, list, first, limit, bytes = args.take(), args.take(), args.take(), args.take(), args.take()
local FIELDS = {
  'state', 'queue', 'attempts', 'stalls', 'created', 'claimed', 'ended', 'due',
  'root', 'pending', 'stop', 'stopper', 'lost', 'acked', 'on', 'why', 'key', 'run', 'inbox', 'waited', 'listens',
}

-- What is recorded of a job, with the state `active` where its holder still has it.
local function read_one(job)
  local record = fields.fetch(job)
  if not record then return nil end
  local hold = record.is_root and record.state == 'waiting' and holds.find(job)
  if hold then record.claimed = Hold.time(hold) end
  if hold or record.state == 'waiting' and record.token and holds.read(job, record.token) then record.state = 'active' end
  record.claimed = fields.claimed_of(record)
  return record
end

local function list_fields(top)
  local values = {}
  for _, name in ipairs(FIELDS) do
    local value = top[name]
    if value and value ~= 0 then tables.push(values, 1, name, type(value) == 'number' and commands.whole(value) or value) end
  end
  local body = top.body
  if top.size then body = commands.try('GET', shard.key('body', id)) end
  tables.push(values, 1, 'text', fields.text_of(id, top))
  tables.push(values, 1, 'body', body or '')
  tables.push(values, 1, 'now', commands.whole(args.read_now('')))
  if bit.band(top.flags, FLAG.JOURNAL) > 0 then tables.push(values, 1, 'journal', '1') end
  if not (commands.try('LLEN', shard.key('members', id)) and commands.try('LLEN', shard.key('done', id))) then tables.push(values, 1, 'damaged', '1') end
  return values[1]
end

local top = read_one(id)
if top and top.removed then top, limit = nil, 0 end -- it is kept for who awaits its outcome alone
local rows, name = {}, shard.key(list, id)
local has_texts, left = bytes > 0, bytes
for _, member in ipairs(limit > 0 and commands.try('LRANGE', name, first, first + limit - 1) or {}) do
  if has_texts and left <= 0 then break end
  local each = read_one(member) or { state = 'unknown' }
  local text = ''
  if has_texts and each.ended then
    text = fields.text_of(member, each)
    left = left - #text
  end
  local needs = list == 'members' and table.concat(commands.try('LRANGE', shard.key('feeds', member), 0, 999) or {}, ' ') or ''
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 9], rows[n + 10] = member, each.state, each.queue or '', text, needs
  local numbers = { each.attempts or 0, each.stalls or 0, each.created or 0, each.claimed or 0, each.ended or 0 }
  for i, value in ipairs(numbers) do rows[n + 3 + i] = tonumber(value) or 0 end
end
return { top and list_fields(top) or {}, commands.try('HGETALL', shard.key('checkpoints', id)) or {}, commands.try('LLEN', name) or 0, rows }
