--needs shard commands flag
--exports joining
-- Waiting for a job that another emission made: its end is told to the emitters that the job lists.
-- The list names emitters, not emissions, and is bounded, so that joins cost no memory and the end of the job no long
-- call. An emitter that finds the list full is told so; it asks for the outcome each few seconds.
joining = {}
local MOST = 1000

-- Returns whether the emitter will be told.
function joining.add_emitter(id, emitter)
  if commands.try('HINCRBY', shard.key('more', id), 'joined', 1) then FLAG.add(id, FLAG.MORE) end -- perhaps with repeats of emissions
  if emitter == '' then return true end -- it does not want to be
  local name = shard.key('waiters', id)
  if (commands.try('SCARD', name) or 0) >= MOST and (commands.try('SMISMEMBER', name, emitter) or {})[1] ~= 1 then return false end
  FLAG.add(id, FLAG.SIDE)
  return commands.try('SADD', name, emitter) ~= nil
end
