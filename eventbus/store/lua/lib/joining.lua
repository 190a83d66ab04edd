--needs base format
--exports join_job
-- Waiting for a job that another emission made: its end is told to the emitters that the job lists.
-- The list names emitters, not emissions, and is bounded, so that joins cost no memory and the end of the job no long
-- call. An emitter that finds the list full is told so; it asks for the outcome each few seconds.
local MOST = 1000

-- Returns whether the emitter will be told.
function join_job(id, emitter)
  if try('HINCRBY', key('more', id), 'joined', 1) then add_flag(id, FLAG.MORE) end -- perhaps with repeats of emissions
  if emitter == '' then return true end -- it does not want to be
  local name = key('waiters', id)
  if (try('SCARD', name) or 0) >= MOST and (try('SMISMEMBER', name, emitter) or {})[1] ~= 1 then return false end
  add_flag(id, FLAG.SIDE)
  return try('SADD', name, emitter) ~= nil
end
