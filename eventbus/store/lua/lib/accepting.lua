--needs shard args commands capacity fields passed pointers
--exports accepting
-- Deciding about emissions of all kinds, before the first write: new jobs, jobs to join, refusals.
accepting = {}
local MOST = bounds.CALL_ROWS -- jobs of one call

local function add_verdict(answer, index, word, job, state, text)
  for _, value in ipairs({ index, word, job, state, text }) do
    answer[#answer + 1] = value
  end
end

local function read_plain(queues)
  local row = { id = args.take(), queues = queues[args.take()], body = args.take(), reply = args.take() == 1 }
  row.key, row.print, row.priority, row.meeting, row.span = '', '', 0, 0, ''
  return row
end

local function read_row(queues, now)
  local row = { id = args.take(), queues = queues[args.take()], body = args.take(), key = args.take(), print = args.take() }
  row.delay, row.due = args.take(), args.take()
  row.priority, row.lifo, row.reply, row.meeting, row.span = args.take(), args.take() == 1, args.take() == 1, args.take(), args.take()
  row.limit, row.keep = args.take(), args.take()
  if row.limit == '' then row.limit = nil end
  if row.delay ~= '' then row.due = now + row.delay end
  if row.due == '' or row.due <= now then row.due = nil end
  return row
end

-- One target of a row: nil for a repeat, a job to join, or a new one.
local function decide(row, target)
  local id = row.id .. target.suffix
  if redis.call('EXISTS', shard.job_root .. id) == 1 then return nil end
  if row.key == '' then return { id = id, target = target, row = row } end
  local pointer = shard.key('key', target.queue .. ':' .. row.key)
  local job, print, state, text, seen = pointers.follow(pointer, row.meeting)
  if job == id then return nil end
  if row.meeting == pointers.SUPERSEDE then
    local following = job and commands.try('HGET', pointer, 'next') or nil
    local late = passed.meet(row, target, job, seen)
    if late then return late end
    seen = passed.add(seen or '', row.id, row.queues.are_roots)
    return { id = id, target = target, row = row, pointer = pointer, superseded = job, following = following, seen = seen }
  end
  if not job then return { id = id, target = target, row = row, pointer = pointer, seen = seen } end
  local is_pending = row.queues.are_roots and not state and not pointers.planned[pointer] and (fields.fetch(job) or {}).pending
  if is_pending then return { join = job, target = target, word = 'pending', state = 'pending' } end
  return { join = job, target = target, word = (print == row.print or print == '') and 'joined' or 'other', state = state, text = text }
end

-- Decides about all targets of a row; returns also the queue that is full, or the key that is somebody else's.
local function decide_row(row, fresh, decide, now)
  local choices, full = {}, nil
  for _, target in ipairs(row.queues.targets) do
    local choice, queue = decide(row, target, now), target.queue
    if choice and (choice.superseded or choice.after) then -- else the older job would end for nothing, or the key be lost
      local place = (row.due or choice.after) and shard.key('delayed', queue) or row.priority ~= 0 and shard.key('ready+', queue) or shard.key('ready', queue)
      if not commands.try((row.due or choice.after or row.priority ~= 0) and 'ZCARD' or 'LLEN', place) then return {}, nil, place end
    elseif choice and not choice.join and not row.due and row.queues.max ~= '' then
      if capacity.count_waiting(queue) + (fresh[queue] or 0) >= row.queues.max then full = queue end
    end
    choices[#choices + 1] = choice
  end
  return choices, full
end

local function join(taken, index, row, choice, emitter, answer)
  local is_own = choice.target.suffix == '' -- of the default group, whose outcome the emission has
  if is_own then add_verdict(answer, index, choice.word, choice.join, choice.state or 'open', choice.text or '') end
  if choice.state then return end
  local told = is_own and row.reply and emitter or ''
  taken.joins[#taken.joins + 1] = { job = choice.join, emitter = told, state_at = is_own and #answer - 1, choice = choice }
end

local function accept(taken, index, row, choice)
  taken.jobs[#taken.jobs + 1], choice.index = choice, index
  if choice.pointer then pointers.planned[choice.pointer] = { job = choice.id, print = row.print, seen = choice.seen } end
  if choice.superseded then taken.supersedes = true end
  local queue = choice.target.queue
  if not (row.due or choice.after) then taken.fresh[queue] = (taken.fresh[queue] or 0) + 1 end
end

-- A row is accepted whole or, when one of its queues is full, lacks the worker that the row needs, or cannot be read, not at
-- all.
function accepting.take_row(taken, index, row, emitter, now, answer)
  local choices, full, foreign = {}, nil, row.queues.is_foreign and shard.key('groups', row.queues.name)
  if not foreign then choices, full, foreign = decide_row(row, taken.fresh, taken.decide or decide, now) end
  if foreign then return add_verdict(answer, index, 'foreign', row.id, '', foreign) end
  local unserved = row.queues.needs_worker and capacity.find_unserved(row.queues, choices, now)
  if unserved then return add_verdict(answer, index, 'unserved', row.id, '', unserved) end
  if full then return add_verdict(answer, index, 'full', row.id, capacity.is_served(full, now) and 'served' or 'unserved', full) end
  for _, choice in ipairs(choices) do
    if choice.join then join(taken, index, row, choice, emitter, answer) else accept(taken, index, row, choice) end
  end
end

-- Groups multiply the jobs of a call, which is bounded in them: the first row is always taken, and once a row is too
-- much all behind it wait too, so that they keep their order. So do a row behind one that merges with its key, and all
-- behind it, because what merges is written after the others.
function accepting.take_all(queues, plain_count, row_count, emitter, now, answer)
  -- fresh: queue -> how many go to ready; merges: rows that `merging.lua` decides about, when the others are written
  local taken = { jobs = {}, joins = {}, fresh = {}, merges = {}, supersedes = false }
  local jobs, merged = 0, {}
  for index = 0, plain_count + row_count - 1 do
    local row = index < plain_count and read_plain(queues) or read_row(queues, now)
    local width = #row.queues.targets
    local name = row.key ~= '' and row.queues.name .. ':' .. row.key
    jobs = jobs + width + (name and row.meeting <= pointers.SUPERSEDE and merged[name] and MOST or 0)
    if jobs > MOST and jobs > width then
      add_verdict(answer, index, 'later', row.id, '', '')
    elseif row.meeting > pointers.SUPERSEDE then
      for _, target in ipairs(row.queues.max ~= '' and row.queues.targets or {}) do capacity.count_waiting(target.queue) end
      taken.merges[#taken.merges + 1], merged[name] = { index = index, row = row }, true
    else
      accepting.take_row(taken, index, row, emitter, now, answer)
    end
  end
  return taken
end
