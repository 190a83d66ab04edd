-- Deciding about emissions of all kinds, before the first write: new jobs, jobs to join, refusals.
local function accept_all(queues, plain_count, row_count, emitter, now, answer)
  local taken = { jobs = {}, joins = {}, fresh = {}, supersedes = false } -- fresh: queue -> how many go to ready

  local function tell(index, word, job, state, text)
    for _, value in ipairs({ index, word, job, state, text }) do
      answer[#answer + 1] = value
    end
  end

  local function read_plain()
    local row = { id = take(), queues = queues[take()], body = take(), reply = take() == 1 }
    row.key, row.print, row.priority, row.meeting = '', '', 0, 0
    return row
  end

  local function read_row()
    local row = { id = take(), queues = queues[take()], body = take(), key = take(), print = take() }
    row.delay, row.due = take(), take()
    row.priority, row.lifo, row.reply, row.meeting = take(), take() == 1, take() == 1, take()
    if row.meeting == SUPERSEDE then taken.supersedes = true end
    if row.delay ~= '' then row.due = now + row.delay end
    if row.due == '' or row.due <= now then row.due = nil end
    return row
  end

  -- One target of a row: nil for a repeat, a job to join, or a new one.
  local function decide(row, target)
    local id = row.id .. target.suffix
    if redis.call('EXISTS', job_root .. id) == 1 then return nil end
    if row.key == '' then return { id = id, target = target, row = row } end
    local pointer = key('key', target.queue .. ':' .. row.key)
    local job, print, state, text = follow(pointer, row.id, row.meeting)
    if job == id then return nil end
    if not job or row.meeting == SUPERSEDE then
      return { id = id, target = target, row = row, pointer = pointer, superseded = job }
    end
    return { join = job, target = target, word = print == row.print and 'joined' or 'other', state = state, text = text }
  end

  local function is_full(row, choice)
    local max, queue = row.queues.max, choice.target.queue
    if max == '' or choice.join or choice.superseded or row.due then return false end
    return redis.call('ZCARD', key('ready', queue)) + (taken.fresh[queue] or 0) >= max
  end

  local function accept(index, row, choice)
    if choice.join then
      if not choice.state then
        taken.joins[#taken.joins + 1] = { job = choice.join, emission = row.id, emitter = row.reply and emitter or '' }
      end
      if choice.target.suffix == '' then
        tell(index, choice.word, choice.join, choice.state or 'open', choice.text or '')
      end
      return
    end
    taken.jobs[#taken.jobs + 1] = choice
    if choice.pointer then planned[choice.pointer] = { job = choice.id, print = row.print } end
    if not row.due then taken.fresh[choice.target.queue] = (taken.fresh[choice.target.queue] or 0) + 1 end
  end

  -- A row is accepted whole or, when one of its queues is full, not at all.
  for index = 0, plain_count + row_count - 1 do
    local row, choices, full = index < plain_count and read_plain() or read_row(), {}, false
    for _, target in ipairs(row.queues.targets) do
      local choice = decide(row, target)
      if choice then
        choices[#choices + 1] = choice
        full = full or is_full(row, choice)
      end
    end
    if full then
      tell(index, 'full', row.id, '', '')
    else
      for _, choice in ipairs(choices) do accept(index, row, choice) end
    end
  end
  return taken
end
