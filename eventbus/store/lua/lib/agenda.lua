--needs shard commands
--exports agenda
-- The agenda of schedules: `schedules` has when each is due, `+inf` for those that are paused or at their end. One entry in
-- `due` stands for all: a worker whose turn finds it due hears so, and fires (`fire.lua`). It has it for itself for a while,
-- and is followed by another one if it dies.
agenda = {}
local PATIENCE = 2000 -- ms in which nobody else hears of what is due

-- When the first schedule is due, or nil.
function agenda.read_first()
  local due = tonumber((commands.try('ZRANGE', shard.root .. ':schedules', 0, 0, 'WITHSCORES') or {})[2])
  return due and due < math.huge and due or nil
end

-- Makes the entry in `due` what it must be. Returns when the first schedule is due, or -1. It is the last write of a call.
-- patience: how long nobody else hears of what is due, ms
function agenda.note_first(now, patience)
  local due = agenda.read_first()
  if not due then
    redis.call('ZREM', shard.root .. ':due', 'schedules:')
    return -1
  end
  redis.call('ZADD', shard.root .. ':due', due > now and due or now + (patience or PATIENCE), 'schedules:')
  return due
end

-- Whether schedules are due. Who asks fires them.
function agenda.hand_out(now)
  local due = agenda.note_first(now)
  return due >= 0 and due <= now
end

function agenda.put(id, due)
  redis.call('ZADD', shard.root .. ':schedules', due == '' and '+inf' or due, id)
end
